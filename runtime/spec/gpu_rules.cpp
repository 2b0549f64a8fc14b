#include "runtime/spec/gpu_rules.h"

#include <fmt/format.h>

#include "runtime/spec/architecture.h"

namespace shardrun::spec {
namespace {

// Refuses what fp8 cannot stand beside, and sizes that tensor cores do not multiply in fp8.
void check_fp8(const TomlValue& document, SpecReading& reading, const JobSpec& spec) {
  if (!spec.precision.fp8 || reading.error) return;
  constexpr int64_t kUnit = 16;
  const std::string origin = SectionReader(document, "precision", reading).origin("fp8");
  const auto refuse = [&](const std::string& what, const std::string& mend) {
    reading.fail(origin, what, mend);
  };
  if (spec.resources.device == DeviceKind::kCpu)
    return refuse("CPUs do not multiply fp8",
                  "set [resources] device = \"gpu\" and have GPUs of compute capability 8.9 or later, or "
                  "remove the key");
  if (!architecture_of(spec.program.trainer).fp8)
    return refuse(fmt::format("fp8 is for the linear layers of {}", kArchitectures.front().called),
                  "remove the key");
  if (spec.precision.parameters != DType::kBf16)
    return refuse("fp8 stands beside bf16", "set parameters = \"bf16\", or remove the key");
  if (spec.model.qkv_bias)
    return refuse("fp8 products have no bias, which queries, keys and values of this model have",
                  "remove the key");
  const int64_t ranks = spec.sharding.tensor_parallel, head_size = spec.model.head_elements();
  const struct {
    const char* what;
    int64_t size;
  } kSizes[] = {{"hidden", spec.model.hidden},
                {"the query heads of a rank", spec.model.heads / ranks * head_size},
                {"the key and value heads of a rank", spec.model.kv_heads / ranks * head_size},
                {"ffn of a rank", spec.model.ffn / ranks},
                {"the tokens of a micro-batch", int64_t{spec.batch.micro_batch} * spec.data.sequence_length}};
  for (const auto& one : kSizes) {
    if (one.size % kUnit == 0) continue;
    return refuse(
        fmt::format("fp8 products take sizes in steps of {}, but {} is {}", kUnit, one.what, one.size),
        fmt::format("make it a multiple of {}, or remove the key", kUnit));
  }
}

// Refuses what cuDNN's attention is not for, as far as the spec tells.
void check_cudnn(const TomlValue& document, SpecReading& reading, const JobSpec& spec) {
  if (spec.gpu.attention != GpuAttention::kCudnn || reading.error) return;
  const Architecture& architecture = architecture_of(spec.program.trainer);
  if (architecture.causal && spec.precision.parameters == DType::kBf16) return;
  reading.fail(SectionReader(document, "gpu", reading).origin("attention"),
               architecture.causal
                   ? "cuDNN's attention is of bf16"
                   : fmt::format("cuDNN's attention masks no padding, which {} has", architecture.called),
               "set attention = \"auto\", or remove the key");
}

// Refuses what models of some families have and the ops of a GPU lack.
void check_model_ops(const TomlValue& document, SpecReading& reading, const JobSpec& spec) {
  constexpr int kMost = 256;  // kernels/cuda/attention.cu has two columns for each thread
  const int hidden = spec.model.hidden, heads = spec.model.heads, size = spec.model.head_elements();
  if (reading.error || heads < 1) return;
  const SectionReader model(document, "model", reading);
  if (spec.model.experts.wanted()) {
    reading.fail(model.origin("experts"), "a GPU has no experts yet, which this model has",
                 "write [resources] device = \"cpu\", or train another family");
  } else if (spec.model.head_norms) {
    reading.fail(model.origin("head_norms"), "a GPU has no norms of heads yet, which this model has",
                 "write [resources] device = \"cpu\", or train another family");
  } else if (spec.model.window > 0 && spec.model.window < spec.data.sequence_length) {
    reading.fail(
        model.origin("window"),
        fmt::format("attention on a GPU has no window yet, and sequence_length {} is above window {}",
                    spec.data.sequence_length, spec.model.window),
        fmt::format("write sequence_length = {} or less", spec.model.window));
  }
  if (size <= kMost) return;
  if (spec.model.head_size > 0) {
    return reading.fail(model.origin("head_size"),
                        fmt::format("attention on a GPU has heads of at most {}", kMost), "write less");
  }
  reading.fail(
      model.origin("heads"),
      fmt::format("attention on a GPU has heads of at most {}, but hidden {} over {} heads makes them {}",
                  kMost, hidden, heads, size),
      "write more heads");
}

}  // namespace

void check_gpu_training(const TomlValue& document, SpecReading& reading, const JobSpec& spec) {
  if (reading.error) return;
  SectionReader section(document, "resources", reading);
  const ResourcesSpec& resources = spec.resources;
  if (!spec.program.command.empty() && (section.has("device") || section.has("ranks_per_gpu"))) {
    return reading.fail(section.origin(section.has("device") ? "device" : "ranks_per_gpu"),
                        "a command program chooses its device itself", "remove the key");
  }
  // The machine that the job names decides, and what it decides is read again (launcher/cluster/load_job).
  const bool names_machine = !spec.cluster.instance.empty() || !spec.cluster.config.empty();
  if (names_machine && !section.has("device") && !spec.program.trainer.empty()) return;
  if (resources.device == DeviceKind::kCpu) {
    if (const SectionReader gpu(document, "gpu", reading); gpu.present() && spec.program.command.empty()) {
      reading.fail(gpu.origin(), "[gpu] has no effect on CPUs",
                   "set [resources] device = \"gpu\", or remove the section");
    } else if (section.has("ranks_per_gpu")) {
      reading.fail(section.origin("ranks_per_gpu"), "ranks_per_gpu has no effect on CPUs",
                   "set device = \"gpu\", or remove the key");
    }
    return check_fp8(document, reading, spec);
  }
  const int places = resources.gpus_per_node * resources.ranks_per_gpu;
  if (resources.ranks_per_node > places) {
    return reading.fail(
        section.origin("device"),
        fmt::format("ranks_per_node = {}, but gpus_per_node = {} and ranks_per_gpu = {} make room for {}",
                    resources.ranks_per_node, resources.gpus_per_node, resources.ranks_per_gpu, places),
        resources.gpus_per_node == 0 ? "set gpus_per_node"
                                     : "lower ranks_per_node, or let ranks share GPUs with ranks_per_gpu");
  }
  SectionReader memory(document, "memory", reading);
  if (memory.has("directory")) {
    return reading.fail(memory.origin("directory"),
                        "what a GPU offloads lies in the host's memory, in no file", "remove the key");
  }
  if (spec.optimizer.kind == OptimizerKind::kAdamW8)
    return reading.fail(SectionReader(document, "optimizer", reading).origin("kind"),
                        "a GPU has no 8-bit moments yet", "write kind = \"adamw\"");
  if (const SectionReader communication(document, "communication", reading); spec.communication.checksums)
    return reading.fail(communication.origin("checksums"),
                        "checksums are made on the host, where a GPU's buffers are not", "remove the key");
  check_model_ops(document, reading, spec);
  check_fp8(document, reading, spec);
  check_cudnn(document, reading, spec);
}

}  // namespace shardrun::spec
