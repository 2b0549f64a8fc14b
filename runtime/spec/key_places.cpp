#include "runtime/spec/key_places.h"

#include "runtime/spec/slurm_spec.h"

namespace shardrun::spec {

std::string_view section_of_key(std::string_view key) {
  struct Place {
    std::string_view key, section;
  };
  constexpr Place kPlaces[] = {{"nodes", "resources"},
                               {"ranks_per_node", "resources"},
                               {"cpus_per_rank", "resources"},
                               {"time_limit", "resources"},
                               {"partition", "resources"},
                               {"account", "resources"},
                               {"constraint", "resources"},
                               {"exclude", "resources"},
                               {"exclusive", "resources"},
                               {"gpus_per_node", "resources"},
                               {"device", "resources"},
                               {"scheduler", "cluster"},
                               {"instance", "cluster"},
                               {"command", "program"},
                               {"trainer", "program"},
                               {"image", "container"},
                               {"mounts", "container"},
                               {"preset", "model"},
                               {"files", "data"},
                               {"sequence_length", "data"},
                               {"global_batch", "batch"},
                               {"micro_batch", "batch"},
                               {"strategy", "sharding"},
                               {"steps", "optimizer"},
                               {"learning_rate", "optimizer"},
                               {"schedule", "optimizer"},
                               {"max_restarts", "fault_tolerance"},
                               {"requeue", "fault_tolerance"},
                               {"spares", "fault_tolerance"}};
  for (const Place& place : kPlaces)
    if (place.key == key) return place.section;
  return is_slurm_key(key) ? "slurm" : "";
}

}  // namespace shardrun::spec
