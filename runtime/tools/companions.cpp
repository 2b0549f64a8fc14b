#include "runtime/tools/companions.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/io.h"
#include "runtime/base/visible.h"
#include "runtime/record/token_file_format.h"
#include "runtime/trainer/data/tokenizer.h"

namespace shardrun::tools {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::Error;

constexpr const char* kOthers[] = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",   "generation_config.json"};

// A cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string safe;
  for (const char letter : base::visible(text)) {
    if (letter == '|' || letter == '<' || letter == '`' || letter == '\\') safe += '\\';
    safe += letter;
  }
  return safe;
}

std::string last_name(const std::string& path) {
  const fs::path trimmed = fs::path(path).lexically_normal();
  return (trimmed.has_filename() ? trimmed : trimmed.parent_path()).filename().string();
}

class Table {
 public:
  void row(std::string_view name, std::string_view value) {
    text_ += fmt::format("| {} | {} |\n", name, cell(value));
  }
  std::string finish() && { return "| | |\n|-|-|\n" + std::move(text_); }

 private:
  std::string text_;
};

void add_loss(Table& table, const record::RunRecord& record, int64_t step) {
  if (!record.metrics || record.metrics->steps != step) return;  // of another state of the model
  const record::TrainingMetrics& metrics = *record.metrics;
  if (metrics.first_loss && metrics.final_loss)
    table.row("training loss, nats",
              fmt::format("{:.4f} at first, {:.4f} at last", *metrics.first_loss, *metrics.final_loss));
  if (metrics.validation_loss)
    table.row("validation loss, nats", fmt::format("{:.4f} (perplexity {:.2f})", *metrics.validation_loss,
                                                   std::exp(*metrics.validation_loss)));
}

}  // namespace

Result<std::vector<std::string>> copy_companions(const std::string& from, const std::string& to) {
  std::vector<std::string> copied;
  std::error_code failure;
  const auto copy = [&](const char* name) -> Result<void> {
    const fs::path source = fs::path(from) / name;
    if (!fs::is_regular_file(source, failure)) return {};
    ASSIGN_OR_RETURN(const auto text, base::read_file(source.string()));
    copied.emplace_back(name);
    return base::write_file_atomically(to + "/" + name, text);
  };
  for (const auto& [name, kind] : record::kTokenizerFiles) RETURN_IF_ERROR(copy(name));
  if (copied.empty())
    return Error(
        Code::kNotFound,
        fmt::format("{}: has no tokenizer.json, tokenizer.model or vocab.txt; name another --tokenizer",
                    from));
  for (const char* name : kOthers) RETURN_IF_ERROR(copy(name));
  return copied;
}

std::string model_card(const record::RunRecord& record, const spec::JobSpec& job, const CardFacts& facts) {
  Table table;
  table.row("began with", facts.origin.empty() ? "random weights" : last_name(facts.origin));
  table.row("parameters",
            fmt::format("{:.1f} million, in {}", static_cast<double>(facts.parameters) / 1e6, facts.dtype));
  std::vector<std::string> files;
  for (const std::string& file : job.data.files) files.push_back(last_name(file));
  table.row("trained on", fmt::format("{}", fmt::join(files, ", ")));
  table.row("steps", fmt::format("{} of {}", facts.step, job.optimizer.steps));
  table.row("batch",
            fmt::format("{} sequences of {} tokens", record.batch.global_batch, job.data.sequence_length));
  table.row("optimizer", fmt::format("{}, learning rate {}, {} steps of warm-up",
                                     job.optimizer.kind == spec::OptimizerKind::kLamb     ? "LAMB"
                                     : job.optimizer.kind == spec::OptimizerKind::kAdamW8 ? "8-bit AdamW"
                                                                                          : "AdamW",
                                     job.optimizer.learning_rate, job.optimizer.warmup_steps));
  table.row("computed in", job.precision.fp8 ? "bf16 and fp8" : name_of(job.precision.parameters));
  table.row("ranks", std::to_string(record.world_size));
  add_loss(table, record, facts.step);
  table.row("run", record.name + " " + record.id);
  const auto version = record.versions.find("shardrun");
  if (version != record.versions.end()) table.row("shardrun", version->second);
  const bool bert = job.program.trainer == "bert";
  const std::string missing =
      facts.companions.empty() ? "\nThe tokenizer is not in this folder: the run did not say where it lies.\n"
                               : "";
  return fmt::format(
      "---\nlibrary_name: transformers\npipeline_tag: {}\ntags:\n- shardrun\n---\n\n# {}\n\n{}{}\n"
      "Nobody has evaluated this model beyond these numbers. The licences of what it began with and was "
      "trained on hold "
      "for it, too.\n",
      bert ? "fill-mask" : "text-generation", base::visible(record.name), std::move(table).finish(), missing);
}

}  // namespace shardrun::tools
