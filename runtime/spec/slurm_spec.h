// [slurm] of a job spec: what Slurm alone understands of a job, beside [resources].
//
// Thread rule: plain values, pure functions.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "runtime/spec/spec_reader.h"
#include "runtime/spec/toml_value.h"

namespace shardrun::spec {

struct SlurmSpec {  // [slurm]; empty texts and 0 mean that nothing is asked for
  std::string qos, reservation, mem, mem_per_cpu, gres, licenses, switches, nodelist, comment;
  std::string mail_type, mail_user;
  std::string dependency;  // as sbatch takes it: "afterok:123,singleton"
  int segment = 0;         // nodes of a block that Slurm's block topology keeps together
  // Every other long option of sbatch, without its dashes: the value, or "" for an option that takes none.
  std::map<std::string, std::string> options;
};

// Reads the section. Refuses options that shardrun sets itself or that have a key of their own, with the reason.
void read_slurm(const TomlValue& document, SpecReading& reading, SlurmSpec& slurm);

// Says whether a key of this name belongs to [slurm], for those who look for it under [resources].
bool is_slurm_key(std::string_view key);

}  // namespace shardrun::spec
