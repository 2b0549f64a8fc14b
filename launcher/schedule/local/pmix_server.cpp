#include "launcher/schedule/local/pmix_server.h"

#include <pmix.h>
#include <pmix_server.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// What the server's threads tell us. libpmix passes no pointer of ours to its callbacks, so there is one mailbox
// for the process, made by PmixServer::start and never destroyed.
struct Mailbox {
  std::mutex mutex;
  std::optional<PmixAbort> first;
  std::set<std::pair<std::string, pmix_rank_t>> connected;  // by namespace
  base::UniqueFd event;
  bool started = false;
};

Mailbox& mailbox() {
  static Mailbox* const kMailbox = new Mailbox;
  return *kMailbox;
}

Error pmix_error(const char* what, pmix_status_t status) {
  return Error(Code::kIo, fmt::format("{}: PMIx says {} ({})", what, PMIx_Error_string(status), status));
}

// Waits for one asynchronous call of the server library.
class Completion {
 public:
  static void done(pmix_status_t status, void* self) {
    auto* completion = static_cast<Completion*>(self);
    const std::lock_guard lock(completion->mutex_);
    completion->status_ = status;
    completion->condition_.notify_one();
  }

  // `call_status` is what the call itself returned.
  pmix_status_t wait(pmix_status_t call_status) {
    if (call_status == PMIX_OPERATION_SUCCEEDED) return PMIX_SUCCESS;
    if (call_status != PMIX_SUCCESS) return call_status;
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [&] { return status_.has_value(); });
    return *status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::optional<pmix_status_t> status_;
};

// A growing pmix_info_t array that frees itself.
class InfoList {
 public:
  InfoList() : list_(PMIx_Info_list_start()) {}
  ~InfoList() { PMIx_Info_list_release(list_); }
  InfoList(const InfoList&) = delete;
  InfoList& operator=(const InfoList&) = delete;

  void add(const char* key, const void* value, pmix_data_type_t type) {
    PMIx_Info_list_add(list_, key, value, type);
  }
  void add(const char* key, uint32_t value) { add(key, &value, PMIX_UINT32); }
  void add(const char* key, uint16_t value) { add(key, &value, PMIX_UINT16); }
  void add(const char* key, const std::string& value) { add(key, value.c_str(), PMIX_STRING); }
  void add_rank(const char* key, int rank) {
    const auto value = static_cast<pmix_rank_t>(rank);
    add(key, &value, PMIX_PROC_RANK);
  }
  void add_list(const char* key, const InfoList& items) {
    pmix_data_array_t array = items.to_array();
    add(key, &array, PMIX_DATA_ARRAY);
    PMIX_DATA_ARRAY_DESTRUCT(&array);
  }
  pmix_data_array_t to_array() const {
    pmix_data_array_t array{};
    PMIx_Info_list_convert(list_, &array);
    return array;
  }

 private:
  void* list_;
};

pmix_status_t on_connected(const pmix_proc_t* proc, void*, pmix_info_t*, size_t, pmix_op_cbfunc_t, void*) {
  Mailbox& box = mailbox();
  const std::lock_guard lock(box.mutex);
  box.connected.emplace(proc->nspace, proc->rank);
  return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t on_finalized(const pmix_proc_t*, void*, pmix_op_cbfunc_t, void*) {
  return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t on_abort(const pmix_proc_t* proc, void*, int status, const char* message, pmix_proc_t*, size_t,
                       pmix_op_cbfunc_t, void*) {
  Mailbox& box = mailbox();
  const std::lock_guard lock(box.mutex);
  if (!box.first) {
    box.first = PmixAbort{static_cast<int>(proc->rank), status, message == nullptr ? "" : message};
    const uint64_t one = 1;
    if (::write(box.event.get(), &one, sizeof one) < 0) return PMIX_ERROR;
  }
  return PMIX_OPERATION_SUCCEEDED;
}

// All ranks are local, so the library has collected everything already: hand it back to them.
pmix_status_t on_fence(const pmix_proc_t*, size_t, const pmix_info_t*, size_t, char* data, size_t bytes,
                       pmix_modex_cbfunc_t reply, void* reply_data) {
  reply(PMIX_SUCCESS, data, bytes, reply_data, std::free, data);
  return PMIX_SUCCESS;
}

// The library asks this only for ranks on other machines, of which there are none.
pmix_status_t on_direct_modex(const pmix_proc_t*, const pmix_info_t*, size_t, pmix_modex_cbfunc_t, void*) {
  return PMIX_ERR_NOT_FOUND;
}

// The library itself notes the files that a client wants removed after its end (MPI libraries ask for their shared
// memory), but only for a host that has this function. All other job control is refused.
pmix_status_t on_job_control(const pmix_proc_t*, const pmix_proc_t*, size_t, const pmix_info_t*, size_t,
                             pmix_info_cbfunc_t, void*) {
  return PMIX_ERR_NOT_SUPPORTED;
}

pmix_server_module_t server_module() {
  pmix_server_module_t module{};
  module.client_connected2 = on_connected;
  module.client_finalized = on_finalized;
  module.abort = on_abort;
  module.fence_nb = on_fence;
  module.direct_modex = on_direct_modex;
  module.job_control = on_job_control;
  return module;
}

void add_rank_facts(InfoList& job_facts, const PmixJob& job) {
  for (int rank = 0; rank < job.world_size; ++rank) {
    InfoList facts;
    facts.add_rank(PMIX_RANK, rank);
    facts.add_rank(PMIX_GLOBAL_RANK, rank);
    facts.add_rank(PMIX_APP_RANK, rank);
    facts.add(PMIX_APPNUM, uint32_t{0});
    facts.add(PMIX_LOCAL_RANK, static_cast<uint16_t>(rank));
    facts.add(PMIX_NODE_RANK, static_cast<uint16_t>(rank));
    facts.add(PMIX_NODEID, uint32_t{0});
    facts.add(PMIX_HOSTNAME, job.host_name);
    job_facts.add_list(PMIX_PROC_INFO_ARRAY, facts);
  }
}

Result<void> add_maps(InfoList& facts, const PmixJob& job, const std::string& ranks) {
  char* nodes = nullptr;
  char* placement = nullptr;
  if (const pmix_status_t status = PMIx_generate_regex(job.host_name.c_str(), &nodes);
      status != PMIX_SUCCESS) {
    return pmix_error("naming the node", status);
  }
  facts.add(PMIX_NODE_MAP, nodes, PMIX_REGEX);
  std::free(nodes);
  if (const pmix_status_t status = PMIx_generate_ppn(ranks.c_str(), &placement); status != PMIX_SUCCESS) {
    return pmix_error("placing the ranks", status);
  }
  facts.add(PMIX_PROC_MAP, placement, PMIX_REGEX);
  std::free(placement);
  return {};
}

Result<void> add_job_facts(InfoList& facts, const PmixJob& job) {
  const auto size = static_cast<uint32_t>(job.world_size);
  std::string ranks;
  for (int rank = 0; rank < job.world_size; ++rank) ranks += fmt::format("{}{}", rank == 0 ? "" : ",", rank);
  RETURN_IF_ERROR(add_maps(facts, job, ranks));
  facts.add(PMIX_JOBID, job.name_space);
  for (const char* key : {PMIX_JOB_SIZE, PMIX_UNIV_SIZE, PMIX_MAX_PROCS}) facts.add(key, size);
  facts.add(PMIX_JOB_NUM_APPS, uint32_t{1});
  facts.add(PMIX_NUM_NODES, uint32_t{1});
  facts.add(PMIX_TMPDIR, job.session_directory);
  facts.add(PMIX_NSDIR, job.session_directory);

  InfoList node;
  node.add(PMIX_HOSTNAME, job.host_name);
  node.add(PMIX_NODEID, uint32_t{0});
  node.add(PMIX_NODE_SIZE, size);
  node.add(PMIX_LOCAL_SIZE, size);
  node.add_rank(PMIX_LOCALLDR, 0);
  node.add(PMIX_LOCAL_PEERS, ranks);
  facts.add_list(PMIX_NODE_INFO_ARRAY, node);

  InfoList app;
  app.add(PMIX_APPNUM, uint32_t{0});
  app.add(PMIX_APP_SIZE, size);
  app.add_rank(PMIX_APPLDR, 0);
  facts.add_list(PMIX_APP_INFO_ARRAY, app);
  add_rank_facts(facts, job);
  return {};
}

pmix_proc_t proc_of(const PmixJob& job, int global_rank) {
  pmix_proc_t proc;
  PMIX_LOAD_PROCID(&proc, job.name_space.c_str(), static_cast<pmix_rank_t>(global_rank));
  return proc;
}

// Says whether every rank of the job came to us; nothing of the job is kept for it any more.
bool all_connected(const PmixJob& job) {
  Mailbox& box = mailbox();
  const std::lock_guard lock(box.mutex);
  const auto count =
      std::erase_if(box.connected, [&](const auto& one) { return one.first == job.name_space; });
  return count == static_cast<size_t>(job.world_size);
}

}  // namespace

Result<std::unique_ptr<PmixServer>> PmixServer::start(const std::string& directory) {
  Mailbox& box = mailbox();
  if (std::exchange(box.started, true)) {
    return Error(Code::kRefused,
                 "a process can run one PMIx server in its life; start the job from a new process");
  }
  box.event = base::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!box.event) return base::errno_error(Code::kIo, "eventfd", errno);

  // The job's facts go to the ranks over their sockets and not through shared memory, whose locks a killed rank
  // could hold for ever.
  ::setenv("PMIX_MCA_gds", "hash", /*overwrite=*/0);
  pmix_server_module_t module = server_module();
  InfoList options;
  options.add(PMIX_SERVER_TMPDIR, directory);
  options.add(PMIX_SYSTEM_TMPDIR, directory);
  pmix_data_array_t array = options.to_array();
  const pmix_status_t status = PMIx_server_init(&module, static_cast<pmix_info_t*>(array.array), array.size);
  PMIX_DATA_ARRAY_DESTRUCT(&array);
  if (status != PMIX_SUCCESS) return pmix_error("starting the PMIx server", status);
  return std::unique_ptr<PmixServer>(new PmixServer);
}

PmixServer::~PmixServer() {
  if (!left_any_) PMIx_server_finalize();
}

Result<void> PmixServer::add_job(const PmixJob& job) {
  InfoList facts;
  RETURN_IF_ERROR(add_job_facts(facts, job));
  pmix_data_array_t array = facts.to_array();
  pmix_nspace_t name_space;
  PMIX_LOAD_NSPACE(name_space, job.name_space.c_str());
  Completion registered;
  pmix_status_t status = registered.wait(
      PMIx_server_register_nspace(name_space, job.world_size, static_cast<pmix_info_t*>(array.array),
                                  array.size, Completion::done, &registered));
  PMIX_DATA_ARRAY_DESTRUCT(&array);
  if (status != PMIX_SUCCESS) return pmix_error("registering the job", status);
  for (int rank = 0; rank < job.world_size; ++rank) {
    const pmix_proc_t proc = proc_of(job, rank);
    Completion known;
    status = known.wait(
        PMIx_server_register_client(&proc, ::getuid(), ::getgid(), nullptr, Completion::done, &known));
    if (status != PMIX_SUCCESS) return pmix_error("registering a rank", status);
  }
  return {};
}

void PmixServer::remove_job(const PmixJob& job) {
  pmix_nspace_t name_space;
  PMIX_LOAD_NSPACE(name_space, job.name_space.c_str());
  take_abort();
  if (all_connected(job)) {
    PMIx_server_deregister_nspace(name_space, nullptr, nullptr);
  } else {
    left_any_ = true;
  }
}

Result<std::vector<std::string>> PmixServer::client_environment(const PmixJob& job, int global_rank) {
  const pmix_proc_t proc = proc_of(job, global_rank);
  char** variables = nullptr;
  if (const pmix_status_t status = PMIx_server_setup_fork(&proc, &variables); status != PMIX_SUCCESS) {
    return pmix_error("preparing a rank's environment", status);
  }
  std::vector<std::string> environment;
  for (char** variable = variables; variable != nullptr && *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
    std::free(*variable);
  }
  std::free(variables);
  return environment;
}

int PmixServer::abort_fd() const {
  return mailbox().event.get();
}

std::optional<PmixAbort> PmixServer::take_abort() {
  Mailbox& box = mailbox();
  const std::lock_guard lock(box.mutex);
  uint64_t count = 0;
  if (::read(box.event.get(), &count, sizeof count) < 0) return std::nullopt;
  return std::exchange(box.first, std::nullopt);
}

}  // namespace shardrun::launcher
