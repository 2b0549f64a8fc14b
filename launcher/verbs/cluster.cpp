#include "launcher/verbs/cluster.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/cluster/pcluster_command.h"
#include "launcher/cluster/pcluster_yaml.h"
#include "launcher/cluster/queues.h"
#include "launcher/cluster/rules.h"
#include "runtime/base/command.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using base::Result;

struct Rendered {
  ClusterConfig config;
  std::string yaml;
};

Result<Rendered> render(const std::string& path) {
  auto config = load_cluster(path);
  if (!config) return std::move(config).error();
  std::string yaml = render_pcluster(*config, built_in_catalogue(), path);
  return Rendered{std::move(config).value(), std::move(yaml)};
}

PclusterCall call_of(const ClusterOptions& options) {
  PclusterCall call;
  call.region = options.region;
  call.limit = std::chrono::seconds(options.timeout_seconds);
  call.waiting = [](int seconds) {
    fmt::print(stderr, "shardrun: pcluster has not answered for {} s\n", seconds);
  };
  return call;
}

// A file of ours for pcluster to read, gone with this object.
class ScratchFile {
 public:
  static Result<ScratchFile> write(const std::string& text) {
    const char* folder = std::getenv("TMPDIR");
    std::string path =
        std::string(folder != nullptr && *folder == '/' ? folder : "/tmp") + "/shardrun-XXXXXX";
    base::UniqueFd file(::mkstemp(path.data()));
    if (!file) return base::errno_error(base::Code::kIo, path, errno);
    ScratchFile scratch(path);
    if (auto written = base::write_all(file.get(), text, path); !written) return std::move(written).error();
    return scratch;
  }
  ScratchFile(ScratchFile&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ScratchFile& operator=(ScratchFile&&) = delete;
  ~ScratchFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Result<ClusterState> describe(const std::string& name, const PclusterCall& call) {
  auto text = call_pcluster(describe_command(name, call), name, call);
  if (!text) return std::move(text).error();
  return parse_cluster_state(*text);
}

// Prints each change until nothing is in progress. A cluster that is gone is what a deletion ends with.
int follow(const std::string& name, bool until_gone, const ClusterOptions& options,
           const CommonOptions& common) {
  const auto began = std::chrono::steady_clock::now();
  std::string last;
  for (;;) {
    const auto state = describe(name, call_of(options));
    if (!state && until_gone && state.error().code() == base::Code::kNotFound) {
      fmt::print("cluster {} is deleted\n", name);
      return contract::kExitDone;
    }
    if (!state) return fail(state.error(), common);
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - began).count();
    if (state->status != last)
      fmt::print("{:>3}:{:02}  {}: {}\n", seconds / 60, seconds % 60, name, status_words(state->status));
    std::fflush(stdout);
    last = state->status;
    if (!state->in_progress()) {
      fmt::print("{}", cluster_text(*state));
      return state->failed() ? contract::kExitInfrastructure : contract::kExitDone;
    }
    std::this_thread::sleep_for(std::chrono::seconds(options.every_seconds));
  }
}

// What create and delete have in common: ask, show the answer, follow it where that was asked for.
int ask(const std::vector<std::string>& argv, const std::string& name, bool until_gone,
        const ClusterOptions& options, const CommonOptions& common) {
  const auto answer = call_pcluster(argv, name, call_of(options));
  if (!answer) return fail(answer.error(), common);
  const auto state = parse_cluster_state(*answer);
  if (!state) return fail(state.error(), common);
  if (common.json) fmt::print("{}", *answer);
  if (!common.json && !options.wait) {
    fmt::print("{}", cluster_text(*state));
    fmt::print("look again with `shardrun cluster describe {}`, or follow with --wait\n", name);
  }
  for (const std::string& note : state->notes) {
    if (options.wait) fmt::print("{}\n", note);
  }
  return options.wait ? follow(name, until_gone, options, common) : contract::kExitDone;
}

}  // namespace

int cluster_render(const ClusterOptions& options, const CommonOptions& common) {
  const auto rendered = render(options.spec);
  if (!rendered) return fail(rendered.error(), common);
  if (options.output.empty()) {
    fmt::print("{}", rendered->yaml);
    return contract::kExitDone;
  }
  if (const auto written = base::write_file_atomically(options.output, rendered->yaml); !written)
    return fail(written.error(), common);
  return contract::kExitDone;
}

int cluster_create(const ClusterOptions& options, const CommonOptions& common) {
  const auto rendered = render(options.spec);
  if (!rendered) return fail(rendered.error(), common);
  const std::string& name = rendered->config.name;
  ClusterOptions own = options;
  if (own.region.empty()) own.region = rendered->config.region;
  if (options.dry_run) {
    fmt::print("{}\n{}\n", rendered->yaml,
               fmt::join(create_command(name, "<the configuration above>", call_of(own)), " "));
    return contract::kExitDone;
  }
  const auto file = ScratchFile::write(rendered->yaml);
  if (!file) return fail(file.error(), common);
  return ask(create_command(name, file->path(), call_of(own)), name, /*until_gone=*/false, own, common);
}

int cluster_describe(const ClusterOptions& options, const CommonOptions& common) {
  if (options.wait) return follow(options.name, /*until_gone=*/false, options, common);
  const PclusterCall call = call_of(options);
  const auto answer = call_pcluster(describe_command(options.name, call), options.name, call);
  if (!answer) return fail(answer.error(), common);
  const auto state = parse_cluster_state(*answer);
  if (!state) return fail(state.error(), common);
  fmt::print("{}", common.json ? *answer : cluster_text(*state));
  return contract::kExitDone;
}

int cluster_list(const ClusterOptions& options, const CommonOptions& common) {
  const auto clusters = list_clusters(call_of(options));
  if (!clusters) return fail(clusters.error(), common);
  fmt::print("{}", cluster_table(*clusters));
  return contract::kExitDone;
}

int cluster_delete(const ClusterOptions& options, const CommonOptions& common) {
  const std::vector<std::string> argv = delete_command(options.name, call_of(options));
  if (options.dry_run) {
    fmt::print("{}\n", fmt::join(argv, " "));
    return contract::kExitDone;
  }
  if (!options.yes) {
    return fail(
        base::Error(
            base::Code::kRefused,
            fmt::format("this deletes cluster {} with its nodes and every file system that is not kept; "
                        "repeat it with --yes",
                        options.name)),
        common);
  }
  return ask(argv, options.name, /*until_gone=*/true, options, common);
}

int cluster_queues(const CommonOptions& common) {
  const auto answer = base::run_command(queues_command());
  if (!answer) return fail(answer.error(), common);
  const auto queues = parse_queues(answer->out);
  if (!queues) return fail(queues.error(), common);
  fmt::print("{}", queues_table(*queues));
  return contract::kExitDone;
}

}  // namespace shardrun::launcher
