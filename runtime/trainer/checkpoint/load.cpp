// Reads checkpoints: from files of any spread into the shard of any rank, by copying overlaps of tensor slices.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "runtime/trainer/checkpoint/store.h"

namespace shardrun::checkpoint {
namespace {

using base::Code;
using base::Error;
using plan::ElementRange;
using shard::TensorSlice;

// One tensor inside somebody's local block.
struct Member {
  TensorSlice slice;
  int64_t offset = 0;  // elements from the start of the local block
  TensorSlice wanted;  // the part of a file that is read: what no earlier tensor rank's file holds

  // Returns the part of a range of the local block that is this tensor's, in elements of the slice.
  ElementRange part(const ElementRange& range) const {
    return {std::max<int64_t>(0, range.begin - offset), std::min(slice.elements(), range.end - offset)};
  }
};

// Says where the elements of one block go: element range.begin of the local block is out[tensor][0].
struct Target {
  std::vector<Member> members;  // as many as the block has tensors
  ElementRange range;
  std::array<std::span<float>, 3> out;  // empty if not wanted

  size_t first_wanted() const {
    size_t tensor = 0;
    while (tensor < 2 && out[tensor].empty()) ++tensor;
    return tensor;
  }
};

std::vector<Member> members_of(const BlockInfo& block, int tensor_rank) {
  std::vector<Member> members;
  int64_t offset = 0;
  for (const TensorRecord& tensor : block.tensors) {
    members.push_back({tensor.slice(tensor_rank), offset, tensor.first_holder_slice(tensor_rank)});
    offset += members.back().slice.elements();
  }
  return members;
}

bool may_overlap(const std::vector<Member>& from, const ElementRange& held, const Target& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    const ElementRange held_part = from[i].part(held), wanted_part = to.members[i].part(to.range);
    // Of the same slice two parts may have a row in common, and no element.
    if (from[i].slice == to.members[i].slice &&
        std::max(held_part.begin, wanted_part.begin) >= std::min(held_part.end, wanted_part.end))
      continue;
    const TensorSlice source = shard::rows_of(from[i].slice, held_part);
    const TensorSlice target = shard::rows_of(to.members[i].slice, wanted_part);
    if (shard::intersection(shard::intersection(source, target), from[i].wanted).rows > 0) return true;
  }
  return false;
}

// Copies from `values`, which begin at element `first` of the writer's local block.
int64_t copy_into(const Target& to, size_t tensor, const std::vector<Member>& from, int64_t first,
                  std::span<const float> values) {
  const ElementRange held{first, first + static_cast<int64_t>(values.size())};
  int64_t copied = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const ElementRange source = from[i].part(held), target = to.members[i].part(to.range);
    if (source.count() <= 0 || target.count() <= 0) continue;
    const auto skipped = static_cast<size_t>(source.begin + from[i].offset - first);
    const auto at = static_cast<size_t>(target.begin + to.members[i].offset - to.range.begin);
    copied += shard::copy_overlap({from[i].slice, source, values.subspan(skipped, source.count())},
                                  {to.members[i].slice, target, to.out[tensor].subspan(at, target.count())},
                                  from[i].wanted);
  }
  return copied;
}

// Loads all blocks' targets at once, so that every file is opened once.
Result<void> load(const std::string& folder, const Manifest& manifest, std::span<const int> blocks,
                  std::span<const Target> targets, const GiveBack& give_back) {
  std::vector<int64_t> filled(blocks.size(), 0);
  std::vector<std::vector<plan::ShardLayout>> layouts;  // by tensor rank and position in `blocks`
  for (int rank = 0; rank < manifest.spread.tensor_parallel; ++rank) {
    auto& of_rank = layouts.emplace_back();
    for (const int block : blocks) {
      const std::array<int64_t, 1> elements{manifest.blocks[block].elements(rank)};
      of_rank.push_back(plan::make_layout(elements, manifest.spread.shard_degree));
    }
  }
  for (int file = 0; file < manifest.spread.files(); ++file) {
    const Place place = place_of(manifest.spread, file);
    std::optional<ShardFileReader> reader;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto index = static_cast<size_t>(blocks[i]);
      if (manifest.blocks[index].stage != place.stage) continue;
      const auto from = members_of(manifest.blocks[index], place.tensor_rank);
      const auto& layout = layouts[place.tensor_rank][i];
      const ElementRange held = place.part_of(layout.owned(0, place.shard_rank));
      if (!may_overlap(from, held, targets[i])) continue;
      if (!reader) {
        ASSIGN_OR_RETURN(auto opened, ShardFileReader::open(folder, manifest, file));
        reader.emplace(std::move(opened));
      }
      const size_t counted = targets[i].first_wanted();
      for (size_t tensor = counted; tensor < 3; ++tensor) {
        if (targets[i].out[tensor].empty()) continue;
        int64_t copied = 0;
        RETURN_IF_ERROR(reader->read(index, tensor, [&](int64_t first, std::span<const float> values) {
          copied += copy_into(targets[i], tensor, from, first, values);
        }));
        if (tensor == counted) filled[i] += copied;
        if (give_back) give_back(targets[i].out[tensor]);
      }
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (filled[i] != targets[i].range.count()) {
      return Error(Code::kCorrupt,
                   fmt::format("{}: the shard files do not cover block {}", folder, blocks[i]));
    }
  }
  return {};
}

Result<std::vector<Member>> wanted_members(const BlockInfo& saved, const model::BlockLayout& wanted) {
  if (saved.tensors.size() != wanted.parameters.size()) {
    return Error(Code::kInvalid, fmt::format("the checkpoint's {} has other tensors", saved.name));
  }
  std::vector<Member> members;
  for (size_t i = 0; i < saved.tensors.size(); ++i) {
    const model::ParameterInfo& info = wanted.parameters[i];
    const auto& full = info.whole_shape();
    if (saved.tensors[i].name != info.name || saved.tensors[i].full_shape != full) {
      return Error(Code::kInvalid,
                   fmt::format("the checkpoint has {} where {} is wanted, or of another shape",
                               saved.tensors[i].name, info.name));
    }
    const int64_t count = info.split_dimension < 0 ? 0 : info.shape[info.split_dimension];
    members.push_back(
        {shard::make_slice(full, info.split_dimension, info.split_begin, count), info.offset, {}});
  }
  return members;
}

}  // namespace

Result<void> Store::read_shard(const Manifest& manifest, const LoadTarget& target,
                               const ShardState& state) const {
  if (manifest.blocks.size() != target.blocks.size()) {
    return Error(Code::kInvalid, fmt::format("the checkpoint has {} blocks, {} are wanted",
                                             manifest.blocks.size(), target.blocks.size()));
  }
  std::vector<int> blocks;
  std::vector<Target> targets;
  for (int block = 0; block < target.layout.block_count(); ++block) {
    const auto index = static_cast<size_t>(block);
    ASSIGN_OR_RETURN(auto members, wanted_members(manifest.blocks[index], target.blocks[index]));
    const ElementRange owned = target.layout.owned(block, target.shard_rank);
    const Place place{.spread = {.replicas = target.replicas}, .replica_rank = target.replica_rank};
    Target wanted{std::move(members), place.part_of(owned), {}};
    const int64_t offset = target.layout.block(block).shard_offset + wanted.range.begin - owned.begin;
    for (size_t tensor = 0; tensor < 3; ++tensor) {
      if (state.tensors()[tensor].empty()) continue;
      wanted.out[tensor] = state.tensors()[tensor].subspan(offset, wanted.range.count());
    }
    blocks.push_back(block);
    targets.push_back(std::move(wanted));
  }
  return load(path_of(manifest.step), manifest, blocks, targets, state.give_back);
}

Result<void> Store::read_block(const Manifest& manifest, int block, std::span<float> full) const {
  const BlockInfo& info = manifest.blocks[block];
  SHARDRUN_CHECK(static_cast<int64_t>(full.size()) == info.full_elements());
  Target target{{}, {0, info.full_elements()}, {full, {}, {}}};
  int64_t offset = 0;
  for (const TensorRecord& tensor : info.tensors) {
    target.members.push_back({shard::whole_slice(tensor.full_shape), offset, {}});
    offset += target.members.back().slice.elements();
  }
  const std::array<int, 1> blocks{block};
  return load(path_of(manifest.step), manifest, blocks, {&target, 1}, {});
}

}  // namespace shardrun::checkpoint
