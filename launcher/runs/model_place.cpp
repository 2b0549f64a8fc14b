#include "launcher/runs/model_place.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? path : fs::path(path).parent_path().string();
}

bool is_token_file(const std::string& path) {
  constexpr std::string_view kMagic = "SHRDTOKS";  // docs/formats.md
  std::string begin(kMagic.size(), '\0');
  return std::ifstream(path).read(begin.data(), static_cast<std::streamsize>(begin.size())) &&
         begin == kMagic;
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
    place.tokenizer = tokenizer_in(place.origin);
  }
  const auto& files = spec->data.files;
  const bool reads_bytes = std::none_of(files.begin(), files.end(), [&](const std::string& file) {
    return is_token_file((here / file).string());
  });
  if (place.tokenizer.empty() && reads_bytes) place.tokenizer = spec->data.tokenizer;
  return {};
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

base::Result<ModelPlace> find_model(const std::string& name, const CommonOptions& common) {
  std::error_code ignored;
  ModelPlace place;
  if (fs::exists(fs::path(folder_of(name)) / "config.json", ignored)) {
    place.folder = name;
    place.tokenizer = tokenizer_in(folder_of(name));
    return place;
  }
  ASSIGN_OR_RETURN(place.checkpoint, find_checkpoints(name, common));
  if (const auto run = find_run(name, common)) RETURN_IF_ERROR(ask_run(*run, place));
  return place;
}

}  // namespace shardrun::launcher
