#include "runtime/spec/fault_tolerance_rules.h"

#include <fmt/format.h>

namespace shardrun::spec {

void read_fault_tolerance(const TomlValue& document, SpecReading& reading, const ResourcesSpec& resources,
                          FaultToleranceSpec& faults) {
  constexpr int64_t kLongestSignalLead = 65535;  // of sbatch --signal
  const int nodes = resources.nodes;
  SectionReader section(document, "fault_tolerance", reading);
  section.boolean("requeue", faults.requeue);
  section.duration("signal_lead", 1, kLongestSignalLead, faults.signal_lead);
  section.duration("stop_grace", 1, kDay, faults.stop_grace);
  section.duration("hang_timeout", 0, 7 * kDay, faults.hang_timeout);
  section.integer("max_restarts", 0, 1000, faults.max_restarts);
  section.integer("spares", 0, 1000, faults.spares);
  section.integer("min_nodes", 0, 65536, faults.min_nodes);
  section.duration("node_timeout", 2, kDay, faults.node_timeout);
  section.duration("conductor_timeout", 0, kDay, faults.conductor_timeout);
  section.boolean("preflight", faults.preflight);
  section.number("spike_factor", 1.0, 1e6, faults.spike_factor);
  section.integer("compare_every_steps", 0, kLargestCount, faults.compare_every_steps);
  section.finish();
  if (resources.time_limit && *resources.time_limit <= faults.signal_lead) {
    reading.fail(
        SectionReader(document, "resources", reading).origin("time_limit"),
        fmt::format("Slurm would tell the job to stop as it begins, signal_lead = {} s before its end",
                    faults.signal_lead.count()),
        "give it more time, or set a shorter [fault_tolerance] signal_lead");
  }
  const bool never_changes_nodes = faults.max_restarts == 0 && !wants_preflight(faults);
  if (faults.spares > 0 && never_changes_nodes) {
    reading.fail(
        section.origin("spares"),
        "spares wait for a preflight or a restart, and there is neither: preflight = false, max_restarts = 0",
        "write max_restarts = 3, or remove spares");
  } else if (faults.min_nodes > nodes) {
    reading.fail(section.origin("min_nodes"),
                 fmt::format("min_nodes {} is above the {} nodes of the job", faults.min_nodes, nodes),
                 "write fewer, or raise [resources] nodes");
  } else if (faults.min_nodes > 0 && faults.min_nodes < nodes && never_changes_nodes) {
    reading.fail(section.origin("min_nodes"),
                 "only a preflight or a restart goes on with fewer nodes, and there is neither",
                 "write max_restarts = 3, or remove min_nodes");
  }
}

}  // namespace shardrun::spec
