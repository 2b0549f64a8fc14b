#include "launcher/view/top.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "launcher/view/progress.h"
#include "runtime/base/json_fields.h"
#include "runtime/base/visible.h"

namespace shardrun::launcher {
namespace {

using contract::RankPhase;

constexpr int64_t kSilentMilliseconds = 1500;  // three beats
constexpr int64_t kQuietMilliseconds = 5000;

std::string seconds_text(int64_t milliseconds) {
  return fmt::format("{:.1f} s", static_cast<double>(milliseconds) / 1000.0);
}

std::string phase_word(const contract::Beat& beat, bool trainer) {
  if (!trainer) {
    return beat.quiet_milliseconds < kQuietMilliseconds
               ? "runs"
               : fmt::format("quiet {}", clock_time(static_cast<double>(beat.quiet_milliseconds) / 1000.0));
  }
  switch (beat.phase) {
    case RankPhase::kStarting:
      return "starts";
    case RankPhase::kStepping:
      return beat.waiting ? "waits" : "computes";
    case RankPhase::kSaving:
      return "saves";
    case RankPhase::kEnding:
      return "ends";
  }
  return "?";
}

// Returns the first `columns` characters; all when that is 0. A UTF-8 continuation byte does not count as a
// character.
std::string fit(const std::string& text, int columns) {
  if (columns <= 0) return text;
  int shown = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool continues = (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
    if (!continues && ++shown > columns) return text.substr(0, at);
  }
  return text;
}

template <typename T, typename Text>
std::string or_dash(const std::optional<T>& value, Text text) {
  return value ? text(*value) : "-";
}

// The widths, in characters, of the columns that hold words.
struct Widths {
  int node = 4, state = 5;
};

std::string row_of(const std::string& who, const TopRank& rank, const Widths& widths, const TopSize& size) {
  const auto seconds = [](double value) { return fmt::format("{:.3f}", value); };
  std::string line = fmt::format("{:>5}  {:<{}}  {:<{}} {:>7} {:>8} {:>8} {:>9}  ", who,
                                 base::visible(rank.node), widths.node, rank.state, widths.state,
                                 or_dash(rank.step, [](int64_t step) { return std::to_string(step); }),
                                 or_dash(rank.step_seconds, seconds), or_dash(rank.busy_seconds, seconds),
                                 or_dash(rank.memory_bytes, bytes_text));
  line = fit(line + base::visible(rank.last_line), size.columns);
  return size.colour && rank.trouble ? "\x1b[31m" + line + "\x1b[0m\n" : line + "\n";
}

struct Row {
  std::string who;
  TopRank rank;
};

template <typename T, typename Choose>
void merge(std::optional<T>& into, const std::optional<T>& value, Choose choose) {
  if (!value) return;
  into = into ? choose(*into, *value) : *value;
}

// Makes one row for each node: the state of the worst rank, the slowest figures, the memory of all.
std::vector<Row> rows_of_nodes(const std::vector<TopRank>& ranks) {
  std::vector<Row> rows;
  std::vector<int> counts;
  for (const TopRank& rank : ranks) {
    const bool fresh = rows.empty() || rows.back().rank.node != rank.node;
    if (fresh) {
      rows.push_back({"", rank});
      counts.push_back(1);
    } else {
      TopRank& node = rows.back().rank;
      ++counts.back();
      if (rank.trouble && !node.trouble) {
        node.state = rank.state;
        node.trouble = true;
        node.last_line = rank.last_line;
      }
      merge(node.step, rank.step, [](int64_t a, int64_t b) { return std::min(a, b); });
      merge(node.step_seconds, rank.step_seconds, [](double a, double b) { return std::max(a, b); });
      merge(node.busy_seconds, rank.busy_seconds, [](double a, double b) { return std::max(a, b); });
      merge(node.memory_bytes, rank.memory_bytes, [](int64_t a, int64_t b) { return a + b; });
    }
    rows.back().who = fmt::format("×{}", counts.back());
  }
  return rows;
}

void worst_first(std::vector<Row>& rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    const auto key = [](const Row& row) {
      return std::tuple(!row.rank.trouble, row.rank.step.value_or(0), -row.rank.busy_seconds.value_or(0.0));
    };
    return key(a) < key(b);
  });
}

}  // namespace

TopRank describe(const contract::RankSight& sight, bool trainer, std::optional<int64_t> first_step) {
  const contract::Beat& beat = sight.beat;
  TopRank rank;
  rank.global_rank = sight.global_rank;
  rank.node = sight.node;
  if (!sight.heard) {
    rank.state = "not heard";
    return rank;
  }
  if (trainer && beat.step > 0) {
    rank.step = beat.step;
    rank.step_seconds = static_cast<double>(beat.step_microseconds) * 1e-6;
    if (first_step && beat.step >= *first_step) {
      rank.busy_seconds = static_cast<double>(beat.busy_microseconds) * 1e-6 /
                          static_cast<double>(beat.step - *first_step + 1);
    }
  }
  if (!sight.left && beat.resident_bytes > 0) rank.memory_bytes = beat.resident_bytes;
  rank.trouble = true;
  if (sight.left) {
    rank.state = "ended";
    rank.trouble = false;
  } else if (sight.milliseconds_ago > kSilentMilliseconds) {
    rank.state = "silent " + seconds_text(sight.milliseconds_ago);
  } else if (beat.state == 'T' || beat.state == 't') {
    rank.state = "stopped";
  } else {
    rank.state = phase_word(beat, trainer);
    rank.trouble = false;
  }
  return rank;
}

std::string render_top(const TopView& view, const TopSize& size) {
  std::string out = fit(base::visible(view.title), size.columns) + "\n";
  if (const std::string bar =
          render_progress(view.curve, view.total_steps, size.columns > 0 ? size.columns : 100);
      !bar.empty()) {
    out += bar + "\n";
  }
  if (!view.note.empty()) out += fit(base::visible(view.note), size.columns) + "\n";
  if (view.ranks.empty()) return out;
  std::vector<Row> rows;
  for (const TopRank& rank : view.ranks) rows.push_back({std::to_string(rank.global_rank), rank});
  // The columns' heads, and what is left out.
  const auto used = std::count(out.begin(), out.end(), '\n') + 2;
  const auto room = static_cast<size_t>(std::max<int64_t>(1, size.rows - used));
  const char* who = "rank";
  if (size.rows > 0 && rows.size() > room) {
    rows = rows_of_nodes(view.ranks);
    who = "ranks";
  }
  size_t hidden = 0;
  if (size.rows > 0 && rows.size() > room) {
    worst_first(rows);
    hidden = rows.size() - room;
    rows.resize(room);
  }
  Widths widths;
  for (const Row& row : rows) {
    widths.node = std::max(widths.node, static_cast<int>(base::visible(row.rank.node).size()));
    widths.state = std::max(widths.state, static_cast<int>(row.rank.state.size()));
  }
  out += fit(fmt::format("{:>5}  {:<{}}  {:<{}} {:>7} {:>8} {:>8} {:>9}  {}", who, "node", widths.node,
                         "state", widths.state, "step", "step s", "busy s", "memory", "last line"),
             size.columns) +
         "\n";
  for (const Row& row : rows) out += row_of(row.who, row.rank, widths, size);
  if (hidden > 0)
    out += fit(fmt::format("… and {} more nodes, none of them worse", hidden), size.columns) + "\n";
  return out;
}

void fields(auto& visit, const TopRank& rank) {
  visit("rank", rank.global_rank);
  visit("node", rank.node);
  visit("state", rank.state);
  visit("trouble", rank.trouble);
  visit("step", rank.step);
  visit("step_seconds", rank.step_seconds);
  visit("busy_seconds", rank.busy_seconds);
  visit("memory_bytes", rank.memory_bytes);
  visit("last_line", rank.last_line);
}

void fields(auto& visit, const TopView& view) {
  std::optional<int64_t> step;
  std::optional<double> loss, tokens_per_second;
  if (!view.curve.steps.empty()) {
    step = view.curve.steps.back().step;
    loss = view.curve.steps.back().loss;
    tokens_per_second = view.curve.steps.back().tokens_per_second;
  }
  visit("title", view.title);
  visit("note", view.note);
  visit("step", step);
  visit("loss", loss);
  visit("tokens_per_second", tokens_per_second);
  visit("ranks", view.ranks);
}

std::string to_json(const TopView& view) {
  return base::json_of(view, {.indent = 1, .sorted = false});
}

}  // namespace shardrun::launcher
