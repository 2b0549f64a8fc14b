// Network: which model a job trains, as far as arithmetic goes: the variant of all architectures' configurations.
//
// An architecture is a configuration with the functions of llama.h. It is added by its files here and its type in Network.
// Thread rule: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/plan/model/bert.h"
#include "runtime/plan/model/llama.h"

namespace shardrun::plan {

using Network = std::variant<LlamaConfig, BertConfig>;

// Returns the model of a job of the built-in trainer.
Network network_of(const spec::JobSpec& spec);

ModelShape shape_of(const Network& network);
std::vector<BlockLayout> block_layouts(const Network& network, int tensor_rank, int tensor_parallel);
// Return which of those blocks are trained, or what is trained beside them, and which are frozen: none, or all. Blocks of both
// have the same numbers.
std::vector<BlockLayout> trained_blocks(const Network& network, int tensor_rank, int tensor_parallel);
std::vector<BlockLayout> frozen_blocks(const Network& network);
// Returns what a stage of a pipeline has; only a Llama has several (CHECK).
StageOfModel stage_of(const Network& network, const Stage& stage, int sequence_length, int64_t micro_steps);
// Returns the blocks of the model as one of its stages sees them: with those marked that are elsewhere (BlockLayout). A tied
// embedding is on the first and on the last stage.
std::vector<BlockLayout> blocks_of_stage(const Network& network, std::vector<BlockLayout> blocks,
                                         const StageOfModel& stage);
// Returns the stage whose ranks write each block to checkpoints, of a pipeline like that of `stage`.
std::vector<int> stages_of_blocks(const Network& network, Stage stage, int sequence_length);
FlopsPerToken flops_per_token(const Network& network, int sequence_length);
int64_t most_targets(const Network& network, int sequence_length);
ActivationBytes activation_bytes(const Network& network, const ModelRun& run, int tensor_parallel);
OpList ops(const Network& network, const ModelRun& run, int tensor_parallel);
std::string hf_config(const Network& network);

}  // namespace shardrun::plan
