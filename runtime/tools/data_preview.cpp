#include "runtime/tools/data_preview.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/visible.h"

namespace shardrun::tools {

std::string preview(const data::Tokenizer& tokenizer, std::span<const int32_t> ids, const std::string& place,
                    bool coloured) {
  const auto learned = std::count_if(ids.begin(), ids.end(), [](int32_t id) { return id >= 0; });
  std::string text =
      fmt::format("{}: {} tokens, {} of them learned\n", base::visible(place), ids.size(), learned);
  // Neighbours of one kind are written together: a character may be several tokens.
  for (size_t at = 0; at < ids.size();) {
    const bool is_learned = ids[at] >= 0;
    std::string run;
    for (; at < ids.size() && (ids[at] >= 0) == is_learned; ++at)
      run += tokenizer.spelling_of(is_learned ? ids[at] : ~ids[at]);
    run = base::visible_lines(run);
    if (coloured) {
      text += fmt::format("\033[{}m{}\033[0m", is_learned ? "32" : "2", run);
    } else {
      text += is_learned ? "⟦" + run + "⟧" : run;
    }
  }
  return text + "\n";
}

}  // namespace shardrun::tools
