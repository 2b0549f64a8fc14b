// A job as the command line gives it: a job.toml and flags beside it, or no file at all but the program behind "--".
//
//   shardrun run -N 4 -n 2 -- python3 train.py
//
// Either way there is a job.toml in the run directory, and every later verb works alike.
//
// Thread rule: free functions of the main thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/cluster/load_job.h"
#include "launcher/verbs/command_line.h"

namespace shardrun::launcher {

// Adds the spec, --set, and a flag for each key that people give by hand.
void add_job(CLI::App& verb, JobOptions& job);

// Returns the job's text as a job.toml, of a program without a file.
std::string job_text(const JobOptions& job);

// Loads the job that is about to start, and writes the file of --save. kInvalid for a spec and a program at once, and for
// neither; else errors as load_spec_to_start().
base::Result<LoadedSpec> load_job(const JobOptions& job);

// Returns what is assigned over the job's text: by flags beside a file, and by --set.
std::vector<std::string> overrides_of(const JobOptions& job);

// Returns the words that give the same job to this verb again.
std::vector<std::string> words_of(const JobOptions& job);

}  // namespace shardrun::launcher
