// The --shardrun option: finding it before Slurm reads its command line, and the names under which it travels.
//
// srun reads variables as options before it calls any plugin with its own option, so what is to be a default must be in
// the environment before: slurm_spank_init looks for the option itself. Everything that acts waits for Slurm's word that
// the option was really given.
// Source: SPANK(7), and srun's order of work in src/srun/libsrun/srun_job.c of Slurm 22.05.
//
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::spank {

inline constexpr const char* kOption = "shardrun";
// Where Slurm puts the option's value, once it has read it, for the other side of a step.
inline constexpr const char* kStepVariable = "_SLURM_SPANK_OPTION_shardrun_shardrun";
// The same of pyxis's --container-image: set when this srun has pyxis and an image.
inline constexpr const char* kPyxisStepVariable = "_SLURM_SPANK_OPTION_pyxis_container_image";
// Set between slurm_spank_init and slurm_spank_init_post_opt while defaults for srun are in the environment.
inline constexpr const char* kDefaultsVariable = "SHARDRUN_SPANK_DEFAULTS";

// The value of the option among srun's arguments, argv[0] first: "--shardrun=X" or "--shardrun X" before the program.
// Which options take a value is srun's to know: a word behind an option that could take it as its value is taken for that.
std::optional<std::string> find_option(std::span<const std::string> arguments);

// "a\0b\0" → {"a", "b"}: the form of /proc/self/cmdline.
std::vector<std::string> split_at_zeros(std::string_view text);

// `value` when it is absolute or empty (the option is off), else below `directory`.
std::string absolute_spec(const std::string& value, const std::string& directory);

}  // namespace shardrun::spank
