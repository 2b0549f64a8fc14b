#include <fmt/format.h>

#include "launcher/cluster/job_instance.h"
#include "launcher/cluster/kubernetes.h"
#include "launcher/verbs/verbs.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

base::Result<std::string> render_job(const RenderOptions& options) {
  std::vector<std::string> overrides = options.spec.overrides;
  overrides.emplace_back("cluster.scheduler=mpirun");  // what the launcher pod runs with
  auto loaded = load_spec(options.spec.path, overrides);
  if (!loaded) return std::move(loaded).error();
  auto machine = machine_of(loaded->spec);
  if (!machine) return std::move(machine).error();
  auto context = plan_context(loaded->spec, {}, loaded->overrides, "mpirun");
  if (!context) return std::move(context).error();
  auto plan = solve_launch_plan(loaded->spec, *context);
  if (!plan) return std::move(plan).error();
  KubernetesOptions to;
  to.kind = options.kind == "mpijob"       ? KubernetesKind::kMpiJob
            : options.kind == "pytorchjob" ? KubernetesKind::kPyTorchJob
                                           : KubernetesKind::kAuto;
  to.image = options.image;
  to.name_space = options.name_space;
  to.claim = options.claim;
  to.mount = options.mount;
  return render_kubernetes(loaded->spec, loaded->text, *plan, *machine ? &**machine : nullptr, to);
}

}  // namespace

int render(const RenderOptions& options, const CommonOptions& common) {
  const auto text = render_job(options);
  if (!text) return fail(text.error(), common);
  fmt::print("{}", *text);
  return contract::kExitDone;
}

}  // namespace shardrun::launcher
