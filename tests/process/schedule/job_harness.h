// LocalJob: a job under the local scheduler in a scratch folder, watched from outside as a user would.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "runtime/record/exit_lines.h"
#include "runtime/record/run_record.h"

namespace shardrun::testing {

struct LocalJobOptions {
  int nodes = 1;
  int ranks = 1;  // ranks on each node
  std::vector<std::string> command;
  std::string more;               // appended to the spec
  std::string run_directory;      // default: <folder>/run
  long file_size_limit_kib = -1;  // RLIMIT_FSIZE of the job
  std::string temporary_folder;   // TMPDIR of the launcher; empty: the test's own
};

class LocalJob {
 public:
  // Writes the spec and starts the launcher.
  explicit LocalJob(const LocalJobOptions& options);
  ~LocalJob();
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  // Returns the launcher's exit code, or 128 + signal; -1 when it did not end in time.
  int wait(std::chrono::seconds limit = std::chrono::seconds(60));
  void signal(int signal);

  const std::string& folder() const { return folder_; }
  const std::string& run_directory() const { return run_directory_; }
  pid_t launcher() const { return launcher_; }
  // Returns the whole content; empty when there is no such file.
  std::string file(const std::string& name) const;
  // The lines of attempt 0 as `shardrun logs` merges them: "<time> <node>:<rank> <text>", escaped.
  std::string node_log() const;
  record::RunRecord record() const;
  // How the ranks of attempt 0 ended, as their supervisors say.
  std::map<int, record::RankExit> exits() const { return record::read_rank_exits({run_directory_}, 0); }
  std::string launcher_output() const;  // its stderr and stdout

  // Waits until `text` is in a file of the run directory. Returns false after 20 s.
  bool wait_for(const std::string& name, const std::string& text) const;
  // Waits until the conductor has heard the supervisors of all `ranks`. Returns false after 20 s.
  bool wait_until_heard(int ranks) const;
  // Returns the processes of this job, found by SHARDRUN_RUN_DIR in their environment.
  std::vector<pid_t> processes() const;
  // Returns the supervisor of a rank, or with `program` its child; waits for it, and fails the test where it does not come.
  pid_t find(int global_rank, bool program) const;

 private:
  pid_t look_for(int global_rank, bool program) const;  // -1 if there is none

  std::string folder_, run_directory_;
  pid_t launcher_ = -1;
  int exit_code_ = -1;
};

// Runs a job to its end.
struct Ended {
  explicit Ended(const LocalJobOptions& options) : job(options), exit_code(job.wait()) {}
  LocalJob job;
  int exit_code;
};

}  // namespace shardrun::testing
