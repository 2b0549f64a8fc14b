// Bandwidth history: which all-reduce bandwidth this cluster had in healthy launches of this user, in one small
// text file for each kind of launch: one number a line, bytes a second, the newest last, at most kKept.
//
// It lies in $XDG_STATE_HOME/shardrun/bandwidth or ~/.local/state/shardrun/bandwidth, mode 0600 in folders of mode
// 0700, is replaced by an atomic rename, and is not believed when others can write into its folder. Launches that
// end at the same time may lose one number; the median does not mind.
//
// Thread rule: free functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

inline constexpr size_t kKept = 32;

// What must be the same for two bandwidths to be compared. Empty members are allowed.
struct LaunchKind {
  std::string cluster, partition;
  int nodes = 1, ranks_per_node = 1;
  std::string provider;  // the one that the job asks for
};

// Returns the path of the file; it has only letters, digits, dots, underscores and dashes. kInvalid when no
// variable names a home.
base::Result<std::string> history_path(const LaunchKind& kind);

// Returns the numbers of a file up to what is none; those below a byte a second are left out.
std::vector<double> bandwidths_in(const std::string& text);
// Returns the file that has them.
std::string history_text(std::span<const double> values);

// Returns the median; nullopt where nothing is known yet. kRefused when others can write there; kIo.
base::Result<std::optional<double>> usual_bandwidth(const std::string& path);
// Appends one number. Errors as above.
base::Result<void> remember_bandwidth(const std::string& path, double bytes_per_second);

}  // namespace shardrun::launcher
