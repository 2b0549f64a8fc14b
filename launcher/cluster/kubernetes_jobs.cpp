#include "launcher/cluster/kubernetes_jobs.h"

#include <sys/wait.h>

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/base/command.h"
#include "runtime/base/json.h"
#include "runtime/base/visible.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::member;
using base::Result;
using base::text_of;
using nlohmann::json;

struct Kind {
  const char* name;
  const char* resource;
  const char* pods;  // the label of all its pods; null: the conductor's job has the logs
};
constexpr Kind kKinds[] = {{"MPIJob", "mpijobs.kubeflow.org", nullptr},
                           {"PyTorchJob", "pytorchjobs.kubeflow.org", "training.kubeflow.org/job-name"},
                           {"TrainJob", "trainjobs.trainer.kubeflow.org", "jobset.sigs.k8s.io/jobset-name"}};

const Kind& kind_of(const KubernetesJob& job) {
  return *std::ranges::find_if(kKinds, [&](const Kind& kind) { return job.kind == kind.name; });
}

std::vector<std::string> kubectl(std::vector<std::string> words, const std::string& name_space) {
  words.insert(words.begin(), "kubectl");
  words.insert(words.end(), {"--namespace", name_space});
  return words;
}

}  // namespace

Result<KubernetesJob> parse_kubernetes_job(std::string_view text) {
  const json answer = base::parse_json(text);
  const json &metadata = member(answer, "metadata"), &status = member(answer, "status"),
             &conditions = member(status, "conditions");
  KubernetesJob job;
  job.kind = text_of(member(answer, "kind"));
  job.name = text_of(member(metadata, "name"));
  job.name_space = text_of(member(metadata, "namespace"));
  const bool known = std::ranges::any_of(kKinds, [&](const Kind& kind) { return job.kind == kind.name; });
  if (!known || job.name.empty()) return Error(Code::kCorrupt, "kubectl answered with no job of Kubeflow's");
  job.started = text_of(member(status, "startTime"));
  job.ended = text_of(member(status, "completionTime"));
  job.state = "Waiting";
  if (!conditions.is_array()) return job;
  std::string newest;
  for (const json& condition : conditions) {
    const std::string since = text_of(member(condition, "lastTransitionTime"));
    if (text_of(member(condition, "status")) != "True" || since < newest) continue;
    newest = since;  // times of one form compare as texts
    job.state = text_of(member(condition, "type"));
    job.message = text_of(member(condition, "message"));
  }
  return job;
}

Result<KubernetesJob> find_kubernetes_job(const std::string& name, const std::string& name_space) {
  std::string missing;
  for (const Kind& kind : kKinds) {
    const auto answer = base::finish_command(
        kubectl({"get", kind.resource, name, "--ignore-not-found", "--output", "json"}, name_space), "",
        std::chrono::seconds(60));
    if (!answer && answer.error().code() == Code::kNotFound)
      return Error(Code::kNotFound,
                   "no kubectl command is installed: https://kubernetes.io/docs/tasks/tools/");
    if (!answer) return answer.error();
    const bool well = WIFEXITED(answer->status) && WEXITSTATUS(answer->status) == 0;
    if (!well && answer->err.find("doesn't have a resource type") == std::string::npos)
      return Error(Code::kIo, fmt::format("kubectl: {}", answer->err.substr(0, answer->err.find('\n'))));
    if (well && !answer->out.empty()) return parse_kubernetes_job(answer->out);
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", kind.name);
  }
  return Error(Code::kNotFound,
               fmt::format("the namespace {} has no {} of the name {}", name_space, missing, name));
}

std::vector<std::string> kubernetes_logs_command(const KubernetesJob& job, bool follow) {
  std::vector<std::string> words = {"logs"};
  if (follow) words.emplace_back("--follow");
  const Kind& kind = kind_of(job);
  if (kind.pods == nullptr) {
    words.push_back(fmt::format("job/{}-launcher", job.name));
  } else {
    words.insert(words.end(), {"--selector", fmt::format("{}={}", kind.pods, job.name), "--prefix",
                               "--tail=-1", "--max-log-requests=4096"});
  }
  return kubectl(std::move(words), job.name_space);
}

std::vector<std::string> kubernetes_cancel_command(const KubernetesJob& job) {
  return kubectl({"delete", kind_of(job).resource, job.name, "--wait=false"}, job.name_space);
}

std::string kubernetes_text(const KubernetesJob& job) {
  std::string text = fmt::format("{:<12} {} {} in {}\n{:<12} {}\n", "job", job.kind, base::visible(job.name),
                                 base::visible(job.name_space), "state", base::visible(job.state));
  const auto add = [&](const char* what, const std::string& value) {
    if (!value.empty()) text += fmt::format("{:<12} {}\n", what, base::visible(value));
  };
  add("because", job.message);
  add("started", job.started);
  add("ended", job.ended);
  return text;
}

}  // namespace shardrun::launcher
