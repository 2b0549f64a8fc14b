// ForwardingCommunicator: passes every operation on to another communicator, for those that look at operations or change some.
//
// Thread rule: as Communicator.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runtime/trainer/comm/communicator.h"

namespace shardrun::comm {

class ForwardingCommunicator : public Communicator {
 public:
  // `inner` outlives it.
  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return pass("all-gather", all.size(), [&] { return inner_.all_gather(mine, all); });
  }
  Result<Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    return pass("reduce-scatter", full.size_bytes(), [&] { return inner_.reduce_scatter(full, mine); });
  }
  Result<Pending> reduce_scatter(std::span<const Bf16> full, std::span<Bf16> mine) override {
    return pass("reduce-scatter", full.size_bytes(), [&] { return inner_.reduce_scatter(full, mine); });
  }
  Result<Pending> all_reduce(std::span<float> buffer) override {
    return pass("all-reduce", buffer.size_bytes(), [&] { return inner_.all_reduce(buffer); });
  }
  Result<Pending> all_reduce(std::span<double> buffer) override {
    return pass("all-reduce", buffer.size_bytes(), [&] { return inner_.all_reduce(buffer); });
  }
  Result<Pending> all_reduce(std::span<Bf16> buffer) override {
    return pass("all-reduce", buffer.size_bytes(), [&] { return inner_.all_reduce(buffer); });
  }
  Result<Pending> broadcast(std::span<std::byte> buffer, int root) override {
    return pass("broadcast", buffer.size(), [&] { return inner_.broadcast(buffer, root); });
  }
  Result<Pending> barrier() override {
    return pass("barrier", 0, [&] { return inner_.barrier(); });
  }
  Result<Pending> all_to_all(const Parts& parts) override {
    return pass("all-to-all", parts.receive.size(), [&] { return inner_.all_to_all(parts); });
  }
  Result<void> wait(Pending pending) override { return inner_.wait(pending); }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 protected:
  // What each operation comes by: `bytes` are those of the buffer that all ranks fill, and `start` begins it.
  using Start = std::function<Result<Pending>()>;
  virtual Result<Pending> begin(std::string_view /*what*/, size_t /*bytes*/, const Start& start) {
    return start();
  }

  Communicator& inner_;

 private:
  template <typename Operation>
  Result<Pending> pass(std::string_view what, size_t bytes, const Operation& operation) {
    return begin(what, bytes, std::cref(operation));  // a reference needs no memory
  }
};

}  // namespace shardrun::comm
