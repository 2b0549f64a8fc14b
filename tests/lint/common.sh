# Sourced by every lint: goes to the repository's root and says how findings are reported.
# A lint prints one line a finding, "file:line: what is wrong; what to do", and exits 1 if there was any.
set -euo pipefail
cd "${LINT_ROOT:-$(dirname "${BASH_SOURCE[0]}")/../..}"

# Every C and C++ file of ours, sorted; arguments restrict it to the folders named.
sources_under() {
  find "$@" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh' \) | LC_ALL=C sort
}

# shellcheck disable=SC2034  # for those who source this
readonly code_folders=(launcher runtime plugins tests)
