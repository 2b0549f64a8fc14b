// Draws the loss curve of a run as an SVG picture that is readable on light and dark pages.
//
// Thread rule: pure function.
#pragma once

#include <string>

#include "launcher/view/metrics_log.h"

namespace shardrun::launcher {

// Shows training loss as a line, validation losses as dots, and the text's unigram entropy as a dashed line; the
// axes are in steps and, of the built-in trainer, in nats; what a command's loss is, only its program knows. Returns "" when the
// curve has fewer than two steps with a finite loss.
std::string loss_plot_svg(const TrainingCurve& curve, const std::string& title, bool in_nats);

}  // namespace shardrun::launcher
