#include "runtime/spec/slurm_spec.h"

#include <algorithm>

#include <fmt/format.h>

namespace shardrun::spec {
namespace {

constexpr std::string_view kKeys[] = {"qos",       "reservation", "mem",       "mem_per_cpu", "gres",
                                      "licenses",  "switches",    "segment",   "nodelist",    "comment",
                                      "mail_type", "mail_user",   "dependency"};

struct Owned {
  std::string_view option;
  const char* reason;
  const char* mend;
};

constexpr const char* kShape = "shardrun decides how many ranks run where";
constexpr const char* kGpuShape = "every rank of a node chooses among all GPUs of its node";
constexpr const char* kOutput = "the run directory is where the job writes";
constexpr const char* kScript = "the script is shardrun's, and it alone says what runs";
constexpr const char* kAnswer = "shardrun reads sbatch's answer and says what became of the job";
constexpr const char* kRemove = "remove it";

// What shardrun says itself to sbatch, or what would take from it what it relies on.
constexpr Owned kOwned[] = {
    {"job-name", "the job is called as the spec is", "write name = \"…\" at the top"},
    {"nodes", kShape, "write [resources] nodes"},
    {"ntasks", kShape, "write [resources] nodes and ranks_per_node"},
    {"ntasks-per-node", kShape, "write [resources] ranks_per_node"},
    {"ntasks-per-core", kShape, "write [resources] cpus_per_rank"},
    {"ntasks-per-socket", kShape, "write [resources] ranks_per_node"},
    {"ntasks-per-gpu", kShape, "write [resources] ranks_per_gpu"},
    {"cpus-per-task", kShape, "write [resources] cpus_per_rank"},
    {"cpus-per-gpu", kShape, "write [resources] cpus_per_rank"},
    {"distribution", kShape, kRemove},
    {"overcommit", kShape, kRemove},
    {"time", "the end of the time limit is announced to the ranks", "write [resources] time_limit"},
    {"time-min", "the end of the time limit is announced to the ranks", "write [resources] time_limit"},
    {"signal", "the end of the time limit is announced to the ranks", "write [fault_tolerance] signal_lead"},
    {"partition", "it has a key of its own", "write [resources] partition"},
    {"account", "it has a key of its own", "write [resources] account"},
    {"constraint", "it has a key of its own", "write [resources] constraint"},
    {"exclude", "it has a key of its own", "write [resources] exclude"},
    {"exclusive", "it has a key of its own", "write [resources] exclusive"},
    {"gpus", kGpuShape, "write [resources] gpus_per_node"},
    {"gpus-per-node", kGpuShape, "write [resources] gpus_per_node"},
    {"gpus-per-task", kGpuShape, "write [resources] gpus_per_node"},
    {"gpus-per-socket", kGpuShape, "write [resources] gpus_per_node"},
    {"no-kill", "it follows from what the job does after a fault", "write [fault_tolerance] max_restarts"},
    {"requeue", "it follows from what the job does after a fault", "write [fault_tolerance] requeue"},
    {"no-requeue", "it follows from what the job does after a fault", "write [fault_tolerance] requeue"},
    {"kill-on-invalid-dep", "a job whose dependency cannot be met is cancelled", kRemove},
    {"array", "a job is one run with one run directory", "submit several jobs"},
    {"chdir", "the job runs where it was submitted", "submit it from there"},
    {"output", kOutput, "write [logging] directory"},
    {"error", kOutput, "write [logging] directory"},
    {"input", kOutput, kRemove},
    {"open-mode", kOutput, kRemove},
    {"wrap", kScript, "write [program] command"},
    {"container", kScript, "write [container] image"},
    {"export", "the ranks need the variables that shardrun gives them", "write [environment]"},
    {"export-file", "the ranks need the variables that shardrun gives them", "write [environment]"},
    {"get-user-env", "the ranks need the variables that shardrun gives them", "write [environment]"},
    {"hold", "the job is held until its run directory is written, and then released",
     "write begin = \"…\" in options, or hold it with scontrol"},
    {"wait-all-nodes", "no rank starts before all nodes are up", kRemove},
    {"clusters", "shardrun asks the cluster that sbatch asks by itself", "set SLURM_CLUSTERS"},
    {"uid", "the job runs as who submits it", kRemove},
    {"gid", "the job runs as who submits it", kRemove},
    {"shardrun", "it is the way of a plain srun into this spec", kRemove},
    {"parsable", kAnswer, kRemove},
    {"quiet", kAnswer, kRemove},
    {"verbose", kAnswer, kRemove},
    {"wait", kAnswer, kRemove},
    {"test-only", kAnswer, "use shardrun submit --dry-run"},
    {"help", kAnswer, kRemove},
    {"usage", kAnswer, kRemove},
    {"version", kAnswer, kRemove},
};

std::string with_underscores(std::string key) {
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

bool is_option_name(std::string_view name) {
  if (name.empty() || name.size() > 64 || name.front() < 'a' || name.front() > 'z') return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

void refuse_owned(const TomlMember& member, SpecReading& reading) {
  const std::string& name = member.key;
  if (!is_option_name(name)) {
    return reading.fail(member.value.origin,
                        fmt::format("\"{}\" is no long option of sbatch", printable(name)),
                        "write its name without the dashes before it, e.g. options = { nice = 100 }");
  }
  if (is_slurm_key(with_underscores(name))) {
    return reading.fail(member.value.origin, fmt::format("--{} has a key of its own", name),
                        fmt::format("write {} = … under [slurm]", with_underscores(name)));
  }
  for (const Owned& owned : kOwned) {
    if (owned.option == name)
      return reading.fail(member.value.origin,
                          fmt::format("--{} is not yours to give: {}", name, owned.reason), owned.mend);
  }
}

void read_option(const TomlMember& member, SpecReading& reading, SectionReader& options, std::string& out) {
  const TomlValue& given = member.value;
  refuse_owned(member, reading);
  if (reading.error) return;
  reading.origins["slurm.options." + member.key] = given.origin;
  if (given.kind == TomlValue::Kind::kBoolean && given.boolean) {
    out.clear();
  } else if (given.kind == TomlValue::Kind::kInteger) {
    out = std::to_string(given.integer);
  } else if (given.kind == TomlValue::Kind::kString) {
    options.text(member.key, out, 4096);
  } else {
    reading.fail(given.origin, fmt::format("slurm.options.{} is {}", member.key, kind_name(given.kind)),
                 "write a string, an integer, or true for an option without a value");
  }
}

void read_options(const SectionReader& section, SpecReading& reading, SlurmSpec& slurm) {
  for (const TomlMember& key : section.members()) {
    if (key.key != "options" || reading.error) continue;
    if (key.value.kind != TomlValue::Kind::kTable) {
      return reading.fail(key.value.origin, fmt::format("slurm.options is {}", kind_name(key.value.kind)),
                          "write options = { nice = 100, contiguous = true }");
    }
    SectionReader options(SectionReader::Table{key.value}, "slurm.options", reading);
    for (const TomlMember& member : options.members()) {
      if (reading.error) return;
      read_option(member, reading, options, slurm.options[member.key]);
    }
  }
}

// Slurm's sizes: an integer with K, M, G or T behind it, or without.
void read_size(SectionReader& section, std::string_view key, SpecReading& reading, std::string& out) {
  section.word(key, "", out);
  const std::string digits = out.substr(0, out.find_last_of("0123456789") + 1);
  const std::string unit = out.substr(digits.size());
  const bool number = !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
  if (out.empty() || (number && digits.size() < 16 &&
                      (unit.empty() || (unit.size() == 1 &&
                                        std::string_view("KMGTkmgt").find(unit) != std::string_view::npos))))
    return;
  reading.fail(section.origin(key), fmt::format("slurm.{} = \"{}\" is no size", key, out),
               "write \"64G\": an integer and K, M, G or T");
}

}  // namespace

bool is_slurm_key(std::string_view key) {
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

void read_slurm(const TomlValue& document, SpecReading& reading, SlurmSpec& slurm) {
  SectionReader section(document, "slurm", reading);
  section.word("qos", "._-,", slurm.qos);
  section.word("reservation", "._-,", slurm.reservation);
  read_size(section, "mem", reading, slurm.mem);
  read_size(section, "mem_per_cpu", reading, slurm.mem_per_cpu);
  section.word("gres", "._-:,()/", slurm.gres);
  section.word("licenses", "._-:,@|", slurm.licenses);
  section.word("switches", "@:-", slurm.switches);
  section.integer("segment", 1, 65536, slurm.segment);
  section.word("nodelist", "._-,[]", slurm.nodelist);
  section.text("comment", slurm.comment, 1024);
  section.word("mail_type", "_,", slurm.mail_type);
  section.word("mail_user", "._-+@,", slurm.mail_user);
  section.word("dependency", ":,_+", slurm.dependency);
  section.know("options");
  section.finish();
  read_options(section, reading, slurm);
  if (section.has("mem") && section.has("mem_per_cpu")) {
    reading.fail(section.origin("mem_per_cpu"), "[slurm] has mem, of a node, and mem_per_cpu",
                 "keep one of them");
  }
}

}  // namespace shardrun::spec
