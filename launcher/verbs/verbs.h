// The verbs of the command line, one function each: options in, exit code out (contract/exit_code.h).
//
// main.cpp fills the options from argv; nothing here knows CLI11. Results go to stdout, errors to stderr as
// one line. Thread rule: called once, from the main thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/verbs/common.h"

namespace shardrun::launcher {

struct SpecOptions {
  std::string path;                    // of the job.toml
  std::vector<std::string> overrides;  // --set
};

int validate(const std::vector<std::string>& paths, const std::vector<std::string>& overrides,
             const CommonOptions& common);

struct PlanOptions {
  SpecOptions spec;
  std::string machines;  // types of the catalogue, "p4d.24xlarge,p5.48xlarge"; empty: the job's own
  std::string software;  // a stack that predictions know; empty: the built-in trainer, as fast as "fsdp"
  std::string nodes;     // "16,32,64", "1-8"; empty: the job's own
  std::string scaling;   // "strong", "weak", or the spec's own
  std::string plot;      // file of an SVG
  double tokens = 0.0;   // to train, for hours and dollars
  double dollars_per_hour = 0.0;  // of a node
};
int plan(const PlanOptions& options, const CommonOptions& common);

struct CalibrateOptions {
  SpecOptions spec;      // whose nodes, ranks and queue are measured; empty: this machine
  bool network = false;  // measure only the network again
  bool report = false;   // measure nothing
  std::string output;    // empty: where jobs look for it
};
// Measures a cluster, keeps it where predictions find it, and says how far earlier predictions were off.
int calibrate(const CalibrateOptions& options, const CommonOptions& common);

struct RunOptions {
  SpecOptions spec;
  std::string run_directory;  // continue a prepared directory in the place of a new one
  bool dry_run = false;
  bool quiet = false;
};
int run(const RunOptions& options, const CommonOptions& common);

struct PrecompileOptions {
  SpecOptions spec;
  bool dry_run = false;
  bool quiet = false;
};
// Fills the job's cache of compiled code: here, or as a Slurm job of its own.
int precompile(const PrecompileOptions& options, const CommonOptions& common);

struct SubmitOptions {
  SpecOptions spec;
  bool dry_run = false;
};
int submit(const SubmitOptions& options, const CommonOptions& common);

struct RenderOptions {
  SpecOptions spec;
  std::string to = "kubernetes";
  std::string kind = "auto";  // or "mpijob", "pytorchjob"
  std::string image, claim, name_space = "default", mount = "/fsx";
};
// Prints the manifest of a job; asks no cluster.
int render(const RenderOptions& options, const CommonOptions& common);

struct ScaleOptions {
  SpecOptions spec;
  std::string nodes;    // "1,2,4", "1-8"
  std::string scaling;  // "strong", "weak", or the spec's own
  bool run = false;     // submit the sweep, wait for it, measure
  bool dry_run = false;
  std::string report;  // the folder of a sweep that was submitted before
};
int scale(const ScaleOptions& options, const CommonOptions& common);

struct DataOptions {
  std::string tokenizer, output, chat_template;
  double validation = 0.0;
  uint64_t seed = 1;
  bool split_on_blank_lines = false;
  std::vector<std::string> files;
};
// Becomes shardrun-rank, which has the tokenizers; returns only when that fails.
int data(const DataOptions& options, const CommonOptions& common);

// An empty `run` lists all.
int status(const std::string& run, const CommonOptions& common);

struct LogsOptions {
  std::string run;
  bool follow = false;
  int rank = -1;
  std::string node;
};
int logs(const LogsOptions& options, const CommonOptions& common);
// The ranks of a run as they are now: on a terminal until the run ends or q is pressed, else once.
int top(const std::string& run, const CommonOptions& common);
int cancel(const std::string& run, const CommonOptions& common);
// Looks at this machine; with a spec, at the variables that it sets, too. kExitProgramFailed: something will hurt.
int doctor(const SpecOptions& options, const CommonOptions& common);
int explain(const std::string& run, const CommonOptions& common);
int results(const std::string& run, const CommonOptions& common);

struct ExportOptions {
  std::string checkpoint;  // a run, a folder of checkpoints, or one of them
  std::string output;
  std::string dtype = "bf16";
  uint64_t max_shard_bytes = 5'000'000'000;
};
// Becomes `shardrun-rank export`, which reads the checkpoint; returns only when that cannot be started.
int export_weights(const ExportOptions& options, const CommonOptions& common);

}  // namespace shardrun::launcher
