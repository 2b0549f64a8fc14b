// Verbs whose job lies on another machine: `--host` sends a job there, and asks shardrun there about its runs.
//
// Thread rule: free functions of the main thread.
#pragma once

#include "launcher/verbs/command_line.h"

namespace shardrun::launcher {

// Adds --host, --host-directory and --host-program.
void add_host(CLI::App& verb, CommandLine& line);

// Adds --kubernetes.
void add_kubernetes(CLI::App& verb, CommandLine& line);

// Do it to the job of that name in the namespace of --kubernetes, through kubectl. Return the exit code; the logs are kubectl's
// own output.
base::Result<int> kubernetes_status(const std::string& name, const CommandLine& line);
base::Result<int> kubernetes_logs(const std::string& name, bool follow, const CommandLine& line);
base::Result<int> kubernetes_cancel(const std::string& name, const CommandLine& line);

// Becomes ssh, which runs the same verb there with the words that were typed; returns only when that fails.
base::Result<int> run_elsewhere(const CommandLine& line);

struct Submission {
  const JobOptions& job;
  bool dry_run = false;
  std::string after;  // a run there, as --after takes it
};
// Checks the spec here, sends it and the code snapshot that it asks for, and submits it there. What was sent has arrived in one
// piece before anything is submitted. Returns the exit code.
base::Result<int> submit_elsewhere(const Submission& submission, const CommandLine& line);

// Copies a run directory of that machine, without checkpoints, code and profiles, to <runs>/<name>/<id> here. Returns the exit code.
base::Result<int> fetch_run(const std::string& run, const CommandLine& line);

}  // namespace shardrun::launcher
