// The --shardrun option: finding it before Slurm reads its command line, and the names under which it travels.
//
// srun reads variables as options before it calls any plugin with its own option, so defaults must be in the
// environment before that: slurm_spank_init looks for the option itself. Everything that acts waits until Slurm says
// that the option was really given.
// Source: SPANK(7), and srun's order of steps in src/srun/libsrun/srun_job.c of Slurm 22.05.
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
// The variable in which Slurm puts the option's value, once it has read it, for the other side of a step.
inline constexpr const char* kStepVariable = "_SLURM_SPANK_OPTION_shardrun_shardrun";
// The same for pyxis's --container-image: it is set when this srun has pyxis and an image.
inline constexpr const char* kPyxisStepVariable = "_SLURM_SPANK_OPTION_pyxis_container_image";
// It is set between slurm_spank_init and slurm_spank_init_post_opt, while defaults for srun are in the environment.
inline constexpr const char* kDefaultsVariable = "SHARDRUN_SPANK_DEFAULTS";

// Returns the value of the option among srun's arguments, argv[0] first: "--shardrun=X" or "--shardrun X" before the
// program. Only srun knows which options take a value, so a word behind an option that could take it as its value is
// taken for that.
std::optional<std::string> find_option(std::span<const std::string> arguments);

// Splits the form of /proc/self/cmdline: "a\0b\0" → {"a", "b"}.
std::vector<std::string> split_at_zeros(std::string_view text);

// Returns `value` when it is absolute or empty (the option is off), else the path below `directory`.
std::string absolute_spec(const std::string& value, const std::string& directory);

}  // namespace shardrun::spank
