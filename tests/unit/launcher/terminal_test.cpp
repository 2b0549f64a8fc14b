// What is shown on which terminal.
#include "launcher/view/terminal.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include <map>
#include <regex>

#include "launcher/view/loss_plot.h"
#include "launcher/view/progress.h"
#include "launcher/view/scale_plot.h"
#include "runtime/base/io.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

// The two ends of a terminal of its own.
struct Pty {
  base::UniqueFd master{::posix_openpt(O_RDWR | O_NOCTTY)}, slave;
  Pty() {
    REQUIRE(master);
    REQUIRE_EQ(::grantpt(master.get()), 0);
    REQUIRE_EQ(::unlockpt(master.get()), 0);
    slave = base::UniqueFd(::open(::ptsname(master.get()), O_RDWR | O_NOCTTY));
    REQUIRE(slave);
  }
};

Terminal seen(const std::map<std::string, std::string>& variables) {
  const Pty pty;
  return look_at_terminal(pty.slave.get(), [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

struct Box {
  double left, right, baseline;
  std::string text;
};

// The words of a picture, as wide as sans-serif of 12 pixels is at most on average.
std::vector<Box> words_of(const std::string& svg) {
  static const std::regex kText(
      R"re(<text x="([0-9.]+)" y="([0-9.]+)" text-anchor="(end|middle)">([^<]*)</text>)re");
  std::vector<Box> boxes;
  for (auto at = std::sregex_iterator(svg.begin(), svg.end(), kText); at != std::sregex_iterator(); ++at) {
    const double x = std::stod((*at)[1]), width = 6.6 * static_cast<double>((*at)[4].str().size());
    const bool end = (*at)[3] == "end";
    boxes.push_back(
        {end ? x - width : x - width / 2, end ? x : x + width / 2, std::stod((*at)[2]), (*at)[4]});
  }
  return boxes;
}

// Two words that overprint each other; "" for none.
std::string overprinted(const std::string& svg) {
  const std::vector<Box> boxes = words_of(svg);
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size(); ++j) {
      const Box &a = boxes[i], &b = boxes[j];
      if (a.left < b.right && b.left < a.right && std::abs(a.baseline - b.baseline) < 11.0)
        return a.text + " and " + b.text;
    }
  }
  return "";
}

}  // namespace

TEST_CASE("terminal: colours and moves depend on TERM and NO_COLOR, characters on the locale") {
  const Terminal usual = seen({{"TERM", "xterm-256color"}, {"LANG", "de_DE.UTF-8"}});
  CHECK(usual.colour);
  CHECK(usual.moves);
  CHECK(usual.utf8);
  const Terminal dumb = seen({{"TERM", "dumb"}, {"LANG", "C.UTF-8"}});
  CHECK_FALSE(dumb.colour);
  CHECK_FALSE(dumb.moves);
  const Terminal none = seen({{"TERM", "xterm"}, {"NO_COLOR", "1"}, {"LC_CTYPE", "en_US.utf8"}});
  CHECK_FALSE(none.colour);
  CHECK(none.moves);
  CHECK(none.utf8);
  CHECK_FALSE(seen({{"TERM", "xterm"}, {"LC_ALL", "C"}, {"LANG", "C.UTF-8"}}).utf8);
  CHECK_FALSE(seen({{"TERM", "xterm"}}).utf8);
  const base::UniqueFd file(::open("/dev/null", O_WRONLY));
  const Terminal pipe = look_at_terminal(file.get(), [](const std::string&) { return std::nullopt; });
  CHECK_FALSE(pipe.colour);
  CHECK(pipe.utf8);
}

TEST_CASE("terminal: its width is asked for again") {
  const Pty pty;
  winsize size{24, 50, 0, 0};
  REQUIRE_EQ(::ioctl(pty.master.get(), TIOCSWINSZ, &size), 0);
  CHECK_EQ(terminal_columns(pty.slave.get()), 50);
  size.ws_col = 200;
  REQUIRE_EQ(::ioctl(pty.master.get(), TIOCSWINSZ, &size), 0);
  CHECK_EQ(terminal_columns(pty.slave.get()), 200);
}

TEST_CASE("terminal: a locale of ASCII gets what resembles a character, as wide as it") {
  Terminal ascii;
  ascii.utf8 = false;
  CHECK_EQ(shown_on(ascii, "━━─ 2 × 4 → 3 … ▁█ ü\n"), "##- 2 x 4 > 3 . _# ?\n");
  CHECK_EQ(shown_on({}, "━ ü"), "━ ü");
}

TEST_CASE("progress: a command program has a bar only if it said how many steps there will be") {
  TrainingCurve curve;
  add_metrics("{\"step\":10,\"loss\":2.5,\"time\":100.0}\n{\"step\":20,\"loss\":2.25,\"time\":105.0}\n",
              curve);
  CHECK_EQ(curve.steps[1].step_seconds, doctest::Approx(0.5));
  CHECK_EQ(render_progress(curve, 0, 80), "step 20  loss 2.2500");
  CHECK_EQ(render_progress(curve, 0, 8), "step 20");
  add_metrics("{\"step\":30,\"loss\":2.0,\"total_steps\":60,\"step_seconds\":0.5}\n", curve);
  CHECK_NE(render_progress(curve, 0, 80).find("30/60  loss 2.0000  eta 00:10"), std::string::npos);
}

TEST_CASE("pictures: no words overprint others, however many there are") {
  TrainingCurve curve;
  for (int step = 1; step <= 400; ++step) {
    const StepPoint point{step, 5.0 - 0.005 * step, 100.0, 0.1, 0.0};
    curve.steps.push_back(point);
    if (step % 10 == 0) curve.validations.push_back(point);
  }
  curve.unigram_entropy = 3.0;
  const std::string loss = loss_plot_svg(curve, "x", /*in_nats=*/true);
  CHECK_EQ(overprinted(loss), "");
  CHECK_NE(loss.find("validation 3.000"), std::string::npos);  // the last one has its words
  CHECK_NE(loss.find("unigram entropy"), std::string::npos);

  std::vector<ScalePoint> near;
  for (int nodes = 1; nodes <= 64; ++nodes) near.push_back({nodes, 1.0 - 0.001 * nodes});
  CHECK_EQ(overprinted(scale_plot_svg(near, "x")), "");
  std::vector<ScaleSeries> lines;
  for (int i = 0; i < 8; ++i)
    lines.push_back({"machine-" + std::to_string(i), {{1, 1.0}, {8, 0.9 - 0.01 * i}}});
  CHECK_EQ(overprinted(scale_plot_svg(lines, "x")), "");
}
