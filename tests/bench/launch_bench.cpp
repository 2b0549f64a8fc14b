// Launch cost: seconds from starting the launcher to the end of the first barrier of all ranks.
//
// Each round has three launches, interleaved so that a noisy machine is noisy for all of them:
//   peer     mpirun or srun --mpi=pmix of mpi_barrier (MPI_Init, MPI_Barrier)
//   program  shardrun run of the very same mpi_barrier
//   trainer  shardrun run of the built-in trainer; its first barrier is over the ofi plugin
// Each launch must exit 0 and leave a time stamp after its start, or the benchmark fails. Prints a table and one
// JSON object: medians, the ratio of each to the peer (the median of the rounds' ratios), and the quartiles.
//
//   launch_bench mpirun 8 15                             one machine, 8 ranks, 15 rounds
//   salloc -N4 --ntasks-per-node=2 launch_bench srun 4x2 15   inside a Slurm allocation
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/io.h"
#include "runtime/base/json.h"
#include "runtime/base/unix_time.h"

extern char** environ;

namespace {

// Runs argv with its output in `log`; returns the exit code, or 128 + signal. A launch that hangs is killed
// after a minute.
int run(const std::vector<std::string>& argv, const std::string& log) {
  std::vector<char*> pointers;
  for (const auto& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const int failure = posix_spawnp(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) return 127;
  pollfd ended = {static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)), POLLIN, 0};
  if (::poll(&ended, 1, 60000) == 0) ::kill(pid, SIGKILL);
  ::close(ended.fd);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Bench {
  std::string peer;  // "mpirun" or "srun"
  int nodes = 1, ranks_per_node = 1;
  std::string folder;  // a scratch folder
  std::string bin;     // where shardrun and mpi_barrier are
  int peer_crashes = 0, program_crashes = 0;

  [[noreturn]] void fail(const std::string& what, const std::string& log) const {
    fmt::print(stderr, "launch_bench: {}\n", what);
    if (auto text = shardrun::base::read_file(log)) fmt::print(stderr, "{}", *text);
    std::exit(1);
  }

  double stamp(const std::string& path, double started, const std::string& what) const {
    const auto text = shardrun::base::read_file(path);
    const double finished = text ? std::strtod(text->c_str(), nullptr) : 0.0;
    if (finished <= started) fail(what + " left no time stamp", folder + "/" + what + ".log");
    return finished - started;
  }

  std::string head() const {
    return fmt::format("[resources]\nnodes = {}\nranks_per_node = {}\n[cluster]\nscheduler = \"{}\"\n", nodes,
                       ranks_per_node, peer == "srun" ? "slurm" : "local");
  }

  void write_specs() const {
    std::ofstream(folder + "/program.toml")
        << "name = \"program\"\n"
        << head() << "[program]\ncommand = [\"" << bin << "/mpi_barrier\", \"" << folder
        << "/program.stamp\"]\n[logging]\ndirectory = \"" << folder << "/runs\"\n";
    std::ofstream(folder + "/trainer.toml")
        << "name = \"trainer\"\n"
        << head()
        << "[program]\ntrainer = \"llama\"\n[model]\nlayers = 1\nhidden = 32\nheads = 2\nkv_heads = 2\nffn = "
           "64\n"
           "vocab = 256\n[data]\nfiles = [\"/usr/share/common-licenses/GPL-3\"]\nsequence_length = "
           "32\n[optimizer]\n"
           "steps = 1\n[logging]\ndirectory = \""
        << folder << "/runs\"\n";
  }

  // Open MPI 4.1 sometimes crashes in MPI_Init, whoever started it; on both sides such a launch is counted and done
  // again.
  template <class Launch>
  double launch(Launch&& try_once, const std::string& name, int& crashes) const {
    for (int tries = 0; tries < 5; ++tries) {
      if (const double seconds = try_once(); seconds > 0.0) return seconds;
      ++crashes;
    }
    fail(name + " failed five times", folder + "/" + name + ".log");
  }
  double run_peer() {
    return launch([this] { return try_peer(); }, "peer", peer_crashes);
  }
  double run_program() {
    return launch([this] { return try_shardrun("program"); }, "program", program_crashes);
  }
  double run_trainer() const {
    const double seconds = try_shardrun("trainer");
    if (seconds <= 0.0) fail("the trainer failed", folder + "/trainer.log");
    return seconds;
  }

  double try_peer() const {
    std::filesystem::remove(folder + "/peer.stamp");
    std::vector<std::string> argv = {"mpirun", "--allow-run-as-root", "--oversubscribe", "-np",
                                     std::to_string(nodes * ranks_per_node)};
    if (peer == "srun") {
      argv = {"srun",
              "--mpi=pmix",
              "--kill-on-bad-exit=1",
              fmt::format("--nodes={}", nodes),
              fmt::format("--ntasks={}", nodes * ranks_per_node),
              fmt::format("--ntasks-per-node={}", ranks_per_node)};
    }
    argv.insert(argv.end(), {bin + "/mpi_barrier", folder + "/peer.stamp"});
    const double started = shardrun::base::unix_now();
    if (run(argv, folder + "/peer.log") != 0) return 0.0;
    return stamp(folder + "/peer.stamp", started, "peer");
  }

  double try_shardrun(const std::string& kind) const {
    std::filesystem::remove(folder + "/program.stamp");
    std::filesystem::remove_all(folder + "/runs");
    const std::string log = folder + "/" + kind + ".log";
    const double started = shardrun::base::unix_now();
    if (run({bin + "/shardrun", "run", folder + "/" + kind + ".toml"}, log) != 0) return 0.0;
    if (kind == "program") return stamp(folder + "/program.stamp", started, kind);
    std::ifstream metrics(folder + "/runs/trainer/latest/metrics.jsonl");
    std::string line;
    std::getline(metrics, line);
    const auto event = shardrun::base::parse_json(line);
    if (event.is_discarded() || !event.contains("unix_time")) fail("the trainer left no first barrier", log);
    return event["unix_time"].get<double>() - started;
  }
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

nlohmann::json summary(const std::vector<double>& values) {
  return {
      {"median", quantile(values, 0.5)}, {"p25", quantile(values, 0.25)}, {"p75", quantile(values, 0.75)}};
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  int rounds = 0;
  if (argc == 4) {
    bench.peer = argv[1];
    const std::string shape = argv[2];
    const size_t cross = shape.find('x');
    if (cross != std::string::npos) bench.nodes = std::atoi(shape.c_str());
    bench.ranks_per_node = std::atoi(shape.c_str() + (cross == std::string::npos ? 0 : cross + 1));
    rounds = std::atoi(argv[3]);
  }
  if (rounds < 1 || bench.ranks_per_node < 1 || (bench.peer != "mpirun" && bench.peer != "srun")) {
    fmt::print(stderr, "usage: launch_bench mpirun RANKS ROUNDS | launch_bench srun NODESxRANKS ROUNDS\n");
    return 2;
  }
  bench.bin = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  std::string scratch = (std::filesystem::current_path() / "launch_bench.XXXXXX").string();
  if (::mkdtemp(scratch.data()) == nullptr) return 1;
  bench.folder = scratch;
  bench.write_specs();

  std::vector<double> peer, program, trainer, program_ratio, trainer_ratio;
  for (int round = -1; round < rounds; ++round) {  // round -1 warms the page cache
    const double p = bench.run_peer(), c = bench.run_program(), t = bench.run_trainer();
    if (round < 0) continue;
    peer.push_back(p), program.push_back(c), trainer.push_back(t);
    program_ratio.push_back(c / p), trainer_ratio.push_back(t / p);
  }
  std::filesystem::remove_all(bench.folder);

  const nlohmann::json result = {{"peer", bench.peer},
                                 {"nodes", bench.nodes},
                                 {"ranks_per_node", bench.ranks_per_node},
                                 {"rounds", rounds},
                                 {"peer_crashes", bench.peer_crashes},
                                 {"program_crashes", bench.program_crashes},
                                 {"peer_seconds", summary(peer)},
                                 {"program_seconds", summary(program)},
                                 {"trainer_seconds", summary(trainer)},
                                 {"program_ratio", summary(program_ratio)},
                                 {"trainer_ratio", summary(trainer_ratio)}};
  fmt::print("seconds to the first barrier, median of {} rounds, {} x {} ranks\n", rounds, bench.nodes,
             bench.ranks_per_node);
  fmt::print("  {:<34} {:.3f}\n", bench.peer + " mpi_barrier", quantile(peer, 0.5));
  fmt::print("  {:<34} {:.3f}  ratio {:.2f}\n", "shardrun run mpi_barrier", quantile(program, 0.5),
             quantile(program_ratio, 0.5));
  fmt::print("  {:<34} {:.3f}  ratio {:.2f}\n", "shardrun run trainer", quantile(trainer, 0.5),
             quantile(trainer_ratio, 0.5));
  fmt::print("{}\n", shardrun::base::json_text(result));
  return 0;
}
