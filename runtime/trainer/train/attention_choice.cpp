#include "runtime/trainer/train/attention_choice.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <fmt/format.h>

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;
using spec::GpuAttention;

const std::string kOwn = "shardrun";

// 91900 is 9.19.0.
std::string version_text(int64_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

struct Vote {
  int64_t version = 0;  // of cuDNN; 0: none
  int64_t workspace_bytes = 0;
  int64_t reason_bytes = 0;
};

// What all ranks can: the workspace is the largest. An error says the first rank that cannot, and why.
Result<kernels::CudnnAttentionUse> agree(comm::Communicator& world,
                                         const Result<kernels::CudnnAttentionUse>& own) {
  std::string reason = own ? "" : own.error().to_string();
  Vote mine;
  if (own) mine = {own->version, own->workspace_bytes, 0};
  mine.reason_bytes = static_cast<int64_t>(reason.size());
  ASSIGN_OR_RETURN(const auto votes, comm::gather_values(world, std::vector{mine}));
  kernels::CudnnAttentionUse all{votes.front().version, 0};
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const Vote& vote = votes[rank];
    if (vote.version == 0) {
      reason.resize(vote.reason_bytes);
      RETURN_IF_ERROR(comm::complete(
          world, world.broadcast(std::as_writable_bytes(std::span(reason)), static_cast<int>(rank))));
      return Error(Code::kUnsupported, fmt::format("rank {}: {}", rank, reason));
    }
    if (vote.version != all.version) {
      return Error(Code::kUnsupported, fmt::format("rank {} has cuDNN {}, rank 0 has {}", rank,
                                                   version_text(vote.version), version_text(all.version)));
    }
    all.workspace_bytes = std::max(all.workspace_bytes, vote.workspace_bytes);
  }
  return all;
}

AttentionChoice ours(const std::string& why) {
  return {.by_cudnn = false, .kept = kOwn, .text = "shardrun's kernels: " + why, .notice = ""};
}

AttentionChoice cudnns(const kernels::CudnnAttentionUse& use) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return {.by_cudnn = true,
          .kept = fmt::format("cudnn {}", use.version),
          .text = fmt::format("cuDNN {}, with a workspace of {} MiB", version_text(use.version),
                              (use.workspace_bytes + kMiB - 1) / kMiB),
          .notice = ""};
}

}  // namespace

Result<AttentionChoice> choose_attention(comm::Communicator& world, const AttentionRequest& request,
                                         const TryCudnn& try_cudnn) {
  AttentionChoice choice;
  if (request.wanted == GpuAttention::kOwn) {
    choice = ours("[gpu] attention says so");
  } else if (request.wanted == GpuAttention::kAuto && request.saved == kOwn) {
    choice = ours("the run that is continued had them; [gpu] attention = \"cudnn\" changes that");
  } else {
    auto use = request.refusal.empty()
                   ? agree(world, try_cudnn())
                   : Result<kernels::CudnnAttentionUse>(Error(Code::kUnsupported, request.refusal));
    if (!use && use.error().code() != Code::kUnsupported)
      return std::move(use).error();  // of the collectives
    if (!use && request.wanted == GpuAttention::kCudnn) {
      return Error(
          Code::kUnsupported,
          fmt::format("[gpu] attention = \"cudnn\" cannot be: {}; mend that, or set attention = \"auto\"",
                      use.error().message()));
    }
    choice = use ? cudnns(*use) : ours(use.error().message());
  }
  if (!request.saved.empty() && request.saved != choice.kept) {
    choice.notice = fmt::format(
        "the run that is continued had attention by {}, this one has it by {}: losses may differ in their "
        "last "
        "bits from what they were to be",
        request.saved, choice.kept);
  }
  return choice;
}

}  // namespace shardrun::train
