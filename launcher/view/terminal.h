// What a person's terminal can show: colours, a line that is drawn again, characters beyond ASCII, and how wide it is.
//
// Thread rule: free functions; the environment is read where look_at_terminal() is called.
#pragma once

#include <string>

#include "runtime/contract/rank_env.h"

namespace shardrun::launcher {

struct Terminal {
  bool colour = false;  // neither NO_COLOR nor TERM=dumb
  bool moves = false;   // its cursor can be moved: a bar may be drawn again
  bool utf8 =
      true;  // of a terminal in another locale (LC_ALL, LC_CTYPE, LANG) false; a file or a pipe gets UTF-8
  int columns = 80;  // 80 if it is unknown
};

// Returns what is known of `fd`; nothing of what is no terminal.
Terminal look_at_terminal(int fd, const contract::EnvironmentLookup& environment);
// Returns the number of columns now: a person may have changed the window. 80 if it is unknown.
int terminal_columns(int fd);

// Returns the text as the terminal can show it: where it shows ASCII alone, each other character as one that resembles it, or
// as a question mark. The width stays.
std::string shown_on(const Terminal& terminal, std::string text);

}  // namespace shardrun::launcher
