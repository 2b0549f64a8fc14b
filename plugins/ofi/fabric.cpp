#include "plugins/ofi/fabric.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "plugins/ofi/device.h"

namespace shardrun::ofi {
namespace {

constexpr uint32_t kApiVersion = FI_VERSION(1, 17);

// With its defaults ofi_rxm touches some 70 MB when an endpoint opens (40 ms and more). Over tcp messages go straight from the
// sender's memory into the receiver's, so small bounce buffers cost nothing. A setting that the user made is kept.
struct Setting {
  const char* name;
  const char* value;
};
constexpr Setting kSettings[] = {
    {"FI_OFI_RXM_BUFFER_SIZE", "1024"},
    {"FI_OFI_RXM_SAR_LIMIT", "1024"},
    // All messages: none waits until ofi_rxm of the other side asks for it (docs/decisions/0121).
    {"FI_OFI_RXM_EAGER_LIMIT", "1073741824"},
    {"FI_OFI_RXM_TX_SIZE", "64"},
    {"FI_OFI_RXM_RX_SIZE", "256"},
    {"FI_OFI_RXM_MSG_TX_SIZE", "64"},
    {"FI_OFI_RXM_MSG_RX_SIZE", "64"},
    // In µs. By default it looks at new connections at most every 10 ms, so the first barrier of 8 ranks took 100 ms.
    {"FI_OFI_RXM_CM_PROGRESS_INTERVAL", "100"},
    {"FI_OFI_RXM_CQ_EQ_FAIRNESS", "1"},
};

// The shm provider takes over signals whose handling belongs to the host; this class restores them.
class KeepSignals {
 public:
  KeepSignals() {
    for (size_t i = 0; i < kTaken.size(); ++i) sigaction(kTaken[i], nullptr, &saved_[i]);
  }
  ~KeepSignals() {
    for (size_t i = 0; i < kTaken.size(); ++i) sigaction(kTaken[i], &saved_[i], nullptr);
  }

 private:
  static constexpr std::array<int, 6> kTaken = {SIGBUS, SIGSEGV, SIGTERM, SIGINT, SIGILL, SIGABRT};
  std::array<struct sigaction, 6> saved_{};
};

Status fabric_error(const char* what, int error) {
  return {SHARDRUN_COMM_IO, fmt::format("{}: {}", what, Endpoint::describe(error))};
}

std::vector<Device> devices_of(const fi_info* first) {
  std::vector<Device> devices;
  for (const fi_info* info = first; info != nullptr; info = info->next) {
    Device device{info->domain_attr->name == nullptr ? "" : info->domain_attr->name};
    if (info->nic != nullptr && info->nic->bus_attr != nullptr &&
        info->nic->bus_attr->bus_type == FI_BUS_PCI) {
      const fi_pci_attr& pci = info->nic->bus_attr->attr.pci;
      device.on_bus = true;
      device.place = uint64_t{pci.domain_id} << 24 | uint64_t{pci.bus_id} << 16 |
                     uint64_t{pci.device_id} << 8 | pci.function_id;
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

fi_info* nth_info(fi_info* info, size_t index) {
  for (; index > 0; --index) info = info->next;
  return info;
}

template <typename Fid>
void close_fid(Fid*& object) {
  if (object != nullptr) fi_close(&object->fid);
  object = nullptr;
}

}  // namespace

// The three entry points of libfabric that are not inline, wherever they come from.
struct Endpoint::Library {
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;

  static Status find(const std::string& provider, Library* library) {
    if (provider == "tcp" || provider == "shm") {
      *library = {&::fi_getinfo, &::fi_freeinfo, &::fi_dupinfo, &::fi_fabric};
      return {};
    }
    const KeepSignals keep;  // libfabric's psm libraries take over signals when they are loaded
    void* handle = nullptr;  // EFA's installer puts its own, newer one where no loader looks
    for (const char* name :
         {"/opt/amazon/efa/lib64/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1", "libfabric.so.1"}) {
      handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) break;
    }
    if (handle == nullptr) {
      return {SHARDRUN_COMM_UNSUPPORTED,
              fmt::format("provider \"{}\" needs the system's libfabric.so.1: {}", provider, dlerror())};
    }
    library->getinfo = reinterpret_cast<decltype(&::fi_getinfo)>(dlsym(handle, "fi_getinfo"));
    library->freeinfo = reinterpret_cast<decltype(&::fi_freeinfo)>(dlsym(handle, "fi_freeinfo"));
    library->dupinfo = reinterpret_cast<decltype(&::fi_dupinfo)>(dlsym(handle, "fi_dupinfo"));
    library->fabric = reinterpret_cast<decltype(&::fi_fabric)>(dlsym(handle, "fi_fabric"));
    if (!library->getinfo || !library->freeinfo || !library->dupinfo || !library->fabric) {
      return {SHARDRUN_COMM_UNSUPPORTED, "libfabric.so.1 lacks fi_getinfo or its companions"};
    }
    return {};
  }
};

const char* Endpoint::describe(int error) {
  return fi_strerror(error < 0 ? -error : error);
}

bool Endpoint::is_truncation(int error) {
  return error == FI_ETRUNC || error == FI_EMSGSIZE;
}

Status Endpoint::open(const Place& place, std::unique_ptr<Endpoint>* endpoint) {
  const auto& [provider, source, local_rank, local_world_size] = place;
  for (const Setting& setting : kSettings) setenv(setting.name, setting.value, /*overwrite=*/0);
  Library library;
  if (Status found = Library::find(provider, &library); !found.ok()) return found;

  fi_info* hints = library.dupinfo(nullptr);
  if (hints == nullptr) return {SHARDRUN_COMM_IO, "libfabric is out of memory"};
  hints->ep_attr->type = FI_EP_RDM;
  // Other users cannot write to shm's segments, so that a receive there need not name its sender.
  const bool directed = provider == "tcp";
  hints->caps = FI_TAGGED | (directed ? FI_DIRECTED_RECV : 0);
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  fi_info* found_first = nullptr;
  // The source address is numeric, so no name is ever resolved. For efa and its like all devices are listed.
  const bool by_source = provider == "tcp" || provider == "shm";
  const int error = library.getinfo(kApiVersion, by_source ? source.c_str() : nullptr, nullptr,
                                    by_source ? FI_SOURCE | (provider == "tcp" ? FI_NUMERICHOST : 0) : 0,
                                    hints, &found_first);
  library.freeinfo(hints);
  if (error != 0) {
    return {SHARDRUN_COMM_UNSUPPORTED, fmt::format("libfabric has no provider \"{}\" for \"{}\": {}",
                                                   provider, source, describe(error))};
  }
  fi_info* info = nth_info(found_first, choose_device(devices_of(found_first), local_rank, local_world_size));
  auto opened = std::unique_ptr<Endpoint>(new Endpoint());
  opened->provider_ = provider;
  opened->directed_ = directed;
  opened->registers_ = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
  Status status = opened->open_objects(library, info);
  library.freeinfo(found_first);
  if (status.ok()) *endpoint = std::move(opened);
  return status;
}

Status Endpoint::open_objects(const Library& library, fi_info* info) {
  const KeepSignals keep;
  if (int error = library.fabric(info->fabric_attr, &fabric_, nullptr))
    return fabric_error("fi_fabric", error);
  if (int error = fi_domain(fabric_, info, &domain_, nullptr)) return fabric_error("fi_domain", error);

  fi_cq_attr queue_attr{};
  queue_attr.format = FI_CQ_FORMAT_TAGGED;
  queue_attr.wait_obj = FI_WAIT_FD;
  int error = fi_cq_open(domain_, &queue_attr, &queue_, nullptr);
  const bool can_sleep = error == 0;
  if (!can_sleep) {
    queue_attr.wait_obj = FI_WAIT_NONE;
    error = fi_cq_open(domain_, &queue_attr, &queue_, nullptr);
  }
  if (error) return fabric_error("fi_cq_open", error);

  fi_av_attr address_attr{};
  address_attr.type = FI_AV_TABLE;
  if (int code = fi_av_open(domain_, &address_attr, &addresses_, nullptr))
    return fabric_error("fi_av_open", code);
  if (int code = fi_endpoint(domain_, info, &endpoint_, nullptr)) return fabric_error("fi_endpoint", code);
  if (int code = fi_ep_bind(endpoint_, &addresses_->fid, 0)) return fabric_error("fi_ep_bind", code);
  if (int code = fi_ep_bind(endpoint_, &queue_->fid, FI_SEND | FI_RECV))
    return fabric_error("fi_ep_bind", code);
  if (int code = fi_enable(endpoint_)) return fabric_error("fi_enable", code);
  if (can_sleep) {
    if (int code = fi_control(&queue_->fid, FI_GETWAIT, &wait_fd_)) return fabric_error("FI_GETWAIT", code);
  }
  return read_address();
}

Status Endpoint::read_address() {
  address_.resize(512);
  size_t size = address_.size();
  if (int code = fi_getname(&endpoint_->fid, address_.data(), &size)) return fabric_error("fi_getname", code);
  address_.resize(size);
  return {};
}

Endpoint::~Endpoint() {
  close_fid(endpoint_);
  for (fid_mr* registration : registrations_) fi_close(&registration->fid);
  close_fid(queue_);
  close_fid(addresses_);
  close_fid(domain_);
  close_fid(fabric_);
}

Status Endpoint::connect_peer(uint32_t global_rank, std::span<const std::byte> address, uint32_t world_size) {
  peer_address_.resize(world_size, FI_ADDR_UNSPEC);
  fi_addr_t inserted = FI_ADDR_UNSPEC;
  const int count = fi_av_insert(addresses_, address.data(), 1, &inserted, 0, nullptr);
  if (count != 1) {
    return {SHARDRUN_COMM_IO,
            fmt::format("provider {} does not accept the address of rank {}{}{}", provider_, global_rank,
                        count < 0 ? ": " : "", count < 0 ? describe(count) : ""),
            {global_rank}};
  }
  peer_address_[global_rank] = inserted;
  return {};
}

int Endpoint::register_memory(const void* data, uint64_t bytes, uint64_t access, Request* request) {
  request->registration = nullptr;
  if (!registers_) return 0;
  const int error =
      fi_mr_reg(domain_, data, bytes, access, 0, next_key_++, 0, &request->registration, nullptr);
  if (error == 0) registrations_.insert(request->registration);
  return error;
}

void Endpoint::unregister_memory(Request* request) {
  if (request->registration == nullptr) return;
  registrations_.erase(request->registration);
  fi_close(&request->registration->fid);
  request->registration = nullptr;
}

void Endpoint::abandon(std::unique_ptr<Endpoint> endpoint) {
  static std::mutex mutex;
  static auto* const abandoned = new std::vector<std::unique_ptr<Endpoint>>();  // never destroyed
  std::lock_guard lock(mutex);
  abandoned->push_back(std::move(endpoint));
}

Post Endpoint::send(const void* data, uint64_t bytes, uint64_t tag, Request* request, int* error) {
  ssize_t code = register_memory(data, bytes, FI_SEND, request);
  if (code == 0) {
    void* description = request->registration == nullptr ? nullptr : fi_mr_desc(request->registration);
    code = fi_tsend(endpoint_, data, bytes, description, peer_address_[request->global_rank], tag,
                    &request->context);
  }
  return posted(code, request, error);
}

Post Endpoint::receive(void* data, uint64_t bytes, uint64_t tag, bool from_peer, Request* request,
                       int* error) {
  ssize_t code = register_memory(data, bytes, FI_RECV, request);
  if (code == 0) {
    void* description = request->registration == nullptr ? nullptr : fi_mr_desc(request->registration);
    const fi_addr_t sender = directed_ && from_peer ? peer_address_[request->global_rank] : FI_ADDR_UNSPEC;
    code = fi_trecv(endpoint_, data, bytes, description, sender, tag, /*ignore=*/0, &request->context);
  }
  return posted(code, request, error);
}

Post Endpoint::posted(int64_t code, Request* request, int* error) {
  is_quiet_ = false;
  if (code == 0) return Post::kAccepted;
  unregister_memory(request);
  *error = static_cast<int>(-code);
  return code == -FI_EAGAIN ? Post::kTryAgain : Post::kFailed;
}

Completion Endpoint::read_error() {
  fi_cq_err_entry entry{};
  if (fi_cq_readerr(queue_, &entry, 0) != 1) return {};
  Completion completion;
  completion.request = reinterpret_cast<Request*>(entry.op_context);
  if (completion.request != nullptr) unregister_memory(completion.request);
  completion.error = entry.err == 0 ? FI_EOTHER : entry.err;
  completion.error_text = describe(completion.error);
  return completion;
}

Status Endpoint::poll(std::vector<Completion>* completions) {
  if (is_quiet_) return {};
  std::array<fi_cq_tagged_entry, 32> entries;
  for (;;) {
    const ssize_t count = fi_cq_read(queue_, entries.data(), entries.size());
    if (count == -FI_EAGAIN || count == 0) return {};
    if (count == -FI_EAVAIL) {
      Completion completion = read_error();
      if (completion.request != nullptr) completions->push_back(std::move(completion));
      continue;
    }
    if (count < 0) return fabric_error("fi_cq_read", static_cast<int>(count));
    for (ssize_t i = 0; i < count; ++i) {
      Completion completion;
      completion.request = reinterpret_cast<Request*>(entries[i].op_context);
      unregister_memory(completion.request);
      completion.bytes = entries[i].len;
      completions->push_back(std::move(completion));
    }
    if (static_cast<size_t>(count) < entries.size()) return {};
  }
}

bool Endpoint::may_sleep() {
  if (wait_fd_ < 0 || is_quiet_) return true;
  fid* fids[] = {&queue_->fid};
  is_quiet_ = fi_trywait(fabric_, fids, 1) == 0;
  return is_quiet_;
}

}  // namespace shardrun::ofi
