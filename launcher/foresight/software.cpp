#include "launcher/foresight/software.h"

#include <charconv>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

namespace shardrun::launcher {

using base::Code;
using base::Error;
using base::Result;

namespace {

// A word without a value.
struct Flag {
  std::string_view name;
  void (*set)(Software&);
};

constexpr Flag kFlags[] = {
    {"compile", [](Software& one) { one.traits.fused = true; }},
    {"fused", [](Software& one) { one.traits.fused = true; }},
    {"eager", [](Software& one) { one.traits.fused = false; }},
    {"async_tp", [](Software& one) { one.traits.asynchronous_tensor = true; }},
    {"gpt", [](Software& one) { one.gpt_blocks = true; }},
    {"zero_bubble", [](Software& one) { one.given.zero_bubble = true; }},
    {"gathered_context", [](Software& one) { one.given.gathers_context = true; }},
};

// A word with a number.
struct Degree {
  std::string_view name;
  int Given::*degree;
};

constexpr Degree kDegrees[] = {
    {"pipeline", &Given::pipeline},        {"chunks", &Given::pipeline_chunks},
    {"context", &Given::context_parallel}, {"experts", &Given::experts},
    {"active", &Given::active_experts},    {"expert_parallel", &Given::expert_parallel},
};

std::string words() {
  std::string all = "tensor=N, ";
  for (const Flag& flag : kFlags) all += fmt::format("{}, ", flag.name);
  for (const Degree& degree : kDegrees) all += fmt::format("{}=N, ", degree.name);
  return all + "reduce=bf16 or reduce=fp32";
}

// More than any cluster has of anything, and products of three of them are numbers, too.
constexpr int kLargestDegree = 1 << 15;

Result<void> set_degree(int& degree, std::string_view word, std::string_view value) {
  int number = 0;
  const auto [end, wrong] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (wrong != std::errc() || end != value.data() + value.size() || number < 1 || number > kLargestDegree)
    return Error(Code::kInvalid, fmt::format("{}: write a whole number of 1 to {}", word, kLargestDegree));
  degree = number;
  return {};
}

Result<void> set(Software& software, std::string_view word) {
  const size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  if (equals == std::string_view::npos) {
    for (const Flag& flag : kFlags) {
      if (flag.name != name) continue;
      flag.set(software);
      return {};
    }
  } else {
    const std::string_view value = word.substr(equals + 1);
    for (const Degree& degree : kDegrees)
      if (degree.name == name) return set_degree(software.given.*degree.degree, word, value);
    if (name == "tensor") return set_degree(software.tensor_parallel, word, value);
    if (word == "reduce=bf16" || word == "reduce=fp32") {
      software.traits.reduce_bytes = value == "bf16" ? 2 : 4;
      return {};
    }
  }
  return Error(Code::kInvalid, fmt::format("{}: unknown; behind the stack stand {}", word, words()));
}

Result<void> check(const Given& given) {
  if (given.pipeline == 1 && (given.pipeline_chunks > 1 || given.zero_bubble))
    return Error(Code::kInvalid, "chunks and zero_bubble are of pipelines; write pipeline=N, too");
  if (given.zero_bubble && given.pipeline_chunks > 1)
    return Error(Code::kInvalid, "zero_bubble is of stages with one chunk; leave out one of both");
  if (given.active_experts > given.experts)
    return Error(Code::kInvalid,
                 fmt::format("active={} of experts={}: a token cannot have more than there are",
                             given.active_experts, given.experts));
  if (given.experts % given.expert_parallel != 0)
    return Error(Code::kInvalid, fmt::format("expert_parallel={} does not divide experts={}",
                                             given.expert_parallel, given.experts));
  return {};
}

}  // namespace

Result<Software> parse_software(const std::string& text) {
  const size_t comma = text.find(',');
  const auto stack = find_stack(text.substr(0, comma));
  if (!stack)
    return Error(Code::kInvalid,
                 fmt::format("--software {}: unknown; one of {}", text.substr(0, comma), stack_names()));
  Software software;
  software.traits = traits(*stack);
  for (size_t at = comma; at != std::string::npos;) {
    const size_t end = text.find(',', at + 1);
    const auto word = std::string_view(text).substr(at + 1, end == std::string::npos ? end : end - at - 1);
    if (auto known = set(software, word); !known) return std::move(known).error().context("--software");
    at = end;
  }
  if (auto fits = check(software.given); !fits) return std::move(fits).error().context("--software");
  return software;
}

}  // namespace shardrun::launcher
