#include "launcher/runs/model_place.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/record/token_file_format.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return path;
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

enum class Kind { kText, kTokens, kGone };

Kind kind_of(const std::string& path) {
  std::string begin(record::kTokenFileMagic.size(), '\0');
  std::ifstream file(path);
  if (!file) return Kind::kGone;
  const bool whole = !!file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return whole && begin == record::kTokenFileMagic ? Kind::kTokens : Kind::kText;
}

// Adds what a run's job says of its model.
base::Result<void> ask_run(const record::RunDir& run, ModelPlace& place) {
  ASSIGN_OR_RETURN(const auto plan, read_plan(run));
  const auto spec = spec::load_job_spec(run.job_toml(), plan.overrides);
  RETURN_IF_ERROR(spec);
  place.run = run;
  const fs::path here = plan.working_directory;
  if (spec->model.init != "random") {
    place.weights = (here / spec->model.init).string();
    place.origin = folder_of(place.weights);
  }
  const auto are = [&](Kind kind) {
    return [&here, kind](const std::string& file) { return kind_of((here / file).string()) == kind; };
  };
  const auto& files = spec->data.files;
  for (const std::string& file : files) place.trained_on.push_back((here / file).string());
  // What a run of plain text learned are its bytes, whatever its weights knew before.
  const bool reads_text = std::all_of(files.begin(), files.end(), are(Kind::kText));
  if (!reads_text && !place.origin.empty()) place.tokenizer = tokenizer_in(place.origin);
  if (place.tokenizer.empty() && std::none_of(files.begin(), files.end(), are(Kind::kTokens)))
    place.tokenizer = spec->data.tokenizer;
  return {};
}

base::Result<std::string> best_of(const std::string& checkpoints) {
  constexpr uint64_t kLargestName = 64;
  const auto text = base::read_file(checkpoints + "/best", kLargestName);  // docs/formats.md
  const std::string name = text ? text->substr(0, text->find('\n')) : "";
  std::error_code ignored;
  if (name.starts_with("step_") && name.find('/') == std::string::npos &&
      fs::is_directory(fs::path(checkpoints) / name, ignored))
    return checkpoints + "/" + name;
  return base::Error(
      base::Code::kNotFound,
      fmt::format("{}: no checkpoint is kept as the best one; [evaluation] keep_best = true keeps "
                  "it, and without --best the newest is taken",
                  checkpoints));
}

}  // namespace

std::string tokenizer_in(const std::string& folder) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const fs::path path = fs::path(folder) / name;
    if (fs::is_regular_file(path, ignored)) return path.string();
  }
  return "";
}

base::Result<ModelPlace> find_model(const std::string& name, const CommonOptions& common, bool best) {
  std::error_code ignored;
  ModelPlace place;
  // A run's name is no file here, and what lies in this folder is not its.
  if (fs::exists(name, ignored) && fs::exists(fs::path(folder_of(name)) / "config.json", ignored)) {
    place.folder = name;
    place.tokenizer = tokenizer_in(folder_of(name));
    return place;
  }
  ASSIGN_OR_RETURN(place.checkpoint, find_checkpoints(name, common));
  if (best) {
    ASSIGN_OR_RETURN(place.checkpoint, best_of(place.checkpoint));
  }
  if (const auto run = find_run(name, common)) RETURN_IF_ERROR(ask_run(*run, place));
  return place;
}

}  // namespace shardrun::launcher
