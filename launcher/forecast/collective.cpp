#include "launcher/forecast/collective.h"

#include <algorithm>

namespace shardrun::launcher {
namespace {

constexpr double kBase = 8e-6, kLinkHop = 3e-6, kNetworkHop = 17e-6;  // seconds

double hop_seconds(const Group& group, bool hierarchical) {
  const double inside = hierarchical ? group.per_node - 1 : static_cast<double>(group.ranks - group.nodes);
  return kBase + inside * kLinkHop + static_cast<double>(group.nodes - 1) * kNetworkHop;
}

double others(int64_t count) {
  return static_cast<double>(count - 1) / static_cast<double>(count);
}

}  // namespace

double gather_seconds(double bytes, const Group& group, const Links& links) {
  if (group.ranks <= 1) return 0.0;
  const double inside = bytes * others(group.per_node) / links.link_rate;
  const double between = group.beside * bytes * others(group.nodes) / links.network_rate;
  return hop_seconds(group, links.hierarchical) + std::max(inside, between);
}

double all_reduce_seconds(double bytes, const Group& group, const Links& links) {
  return 2.0 * gather_seconds(bytes, group, links);
}

double all_to_all_seconds(double bytes, const Group& group, const Links& links) {
  if (group.ranks <= 1) return 0.0;
  const double inside = bytes * others(group.per_node) / links.link_rate;
  const double between = group.beside * group.per_node * bytes * others(group.nodes) / links.network_rate;
  return hop_seconds(group, /*hierarchical=*/true) + std::max(inside, between);
}

double gather_volume(double bytes, const Group& group) {
  return bytes * others(group.ranks);
}

}  // namespace shardrun::launcher
