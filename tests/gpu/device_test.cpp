#include "runtime/trainer/kernels/cuda/device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "runtime/trainer/kernels/cuda/ops.h"
#include "tests/gpu/harness.h"

using namespace shardrun;
using namespace shardrun::gpu_test;
namespace cuda = kernels::cuda;

namespace {

// Returns y (N,O) of a product with nothing special about it.
std::vector<std::byte> product_bits(cuda::Device& on, int64_t N, int64_t C, int64_t O) {
  const auto x = as<Bf16>(random_values(N * C, 1)), w = as<Bf16>(random_values(O * C, 2));
  auto x_memory = on.allocate(x.size() * 2), w_memory = on.allocate(w.size() * 2);
  const size_t bytes = static_cast<size_t>(N * O) * 2;
  auto y_memory = on.allocate(bytes);
  REQUIRE(x_memory);
  REQUIRE(w_memory);
  REQUIRE(y_memory);
  REQUIRE(on.copy_in(x_memory->get(), x.data(), x.size() * 2));
  REQUIRE(on.copy_in(w_memory->get(), w.data(), w.size() * 2));
  cuda::make_products<Bf16>(on)->linear_forward(reinterpret_cast<Bf16*>(y_memory->get()),
                                                reinterpret_cast<const Bf16*>(x_memory->get()),
                                                reinterpret_cast<const Bf16*>(w_memory->get()), N, C, O);
  std::vector<std::byte> y(bytes);
  REQUIRE(on.copy_out(y.data(), y_memory->get(), bytes));
  return y;
}

}  // namespace

TEST_CASE("device: one that is not there is not found") {
  const auto created = cuda::Device::create({.index = 99});
  REQUIRE_FALSE(created);
  CHECK_EQ(created.error().code(), base::Code::kNotFound);
}

TEST_CASE("device: an op that needs more workspace than there is gets it") {
  auto small = cuda::Device::create({.workspace_bytes = 1024});
  REQUIRE(small);
  auto large = cuda::Device::create({});
  REQUIRE(large);
  CHECK(product_bits(**small, 65, 128, 64) == product_bits(**large, 65, 128, 64));
}

TEST_CASE("device: products tuned once have the same bits wherever their table is loaded") {
  auto tuned = cuda::Device::create({});
  REQUIRE(tuned);
  (*tuned)->tune_products(true);
  const auto expected = product_bits(**tuned, 256, 512, 384);
  const std::string table = (*tuned)->product_table();
  MESSAGE(table);
  CHECK_NE(table.find("bf16>bf16 TN 384 256 512"), std::string::npos);

  auto other = cuda::Device::create({});
  REQUIRE(other);
  REQUIRE((*other)->load_product_table(table));
  CHECK(product_bits(**other, 256, 512, 384) == expected);
  CHECK_EQ((*other)->product_table(), table);
  CHECK_FALSE((*other)->load_product_table("shardrun products 1\nmade for another GPU\n"));
}

namespace {

// Sets y to 3·x by ops that are repeated, and counts how often they were called themselves.
struct Repeated {
  explicit Repeated(cuda::Device& device)
      : on(device),
        pointwise(cuda::make_pointwise<float>(device)),
        memory(device.allocate(2 * kBytes).value()) {}

  base::Result<void> run(const char* name, float value) {
    float* const x = reinterpret_cast<float*>(memory.get());
    float* const y = x + kCount;
    const std::vector<float> values(kCount, value);
    RETURN_IF_ERROR(on.copy_in(x, values.data(), kBytes));
    return on.repeat({.name = name}, [&]() -> base::Result<void> {
      ++calls;
      on.fill(y, 0, kBytes);
      for (int i = 0; i < 3; ++i) pointwise->add(y, y, x, kCount);
      return {};
    });
  }
  float result() {
    std::vector<float> y(kCount);
    REQUIRE(on.copy_out(y.data(), memory.get() + kBytes, kBytes));
    CHECK_EQ(y.front(), y.back());
    return y.front();
  }

  static constexpr int64_t kCount = 1000;
  static constexpr size_t kBytes = kCount * sizeof(float);
  cuda::Device& on;
  std::unique_ptr<kernels::PointwiseOps<float>> pointwise;
  cuda::Memory memory;
  int calls = 0;
};

}  // namespace

TEST_CASE("device: ops that are repeated become a graph, which works on what the memory holds by then") {
  auto created = cuda::Device::create({});
  REQUIRE(created);
  Repeated ops(**created);
  for (const bool graphs : {false, true}) {
    (*created)->use_graphs(graphs);
    for (int i = 1; i <= 4; ++i) {
      REQUIRE(ops.run("sum", static_cast<float>(i)));
      CHECK_EQ(ops.result(), 3.0F * static_cast<float>(i));
    }
    CHECK_EQ(ops.calls, graphs ? 6 : 4);  // once as they are, and once for the capture
    CHECK_EQ((*created)->graph_launches(), graphs ? 3 : 0);
  }
  REQUIRE(ops.run("another sum", 1.0F));
  CHECK_EQ(ops.calls, 7);
}

TEST_CASE("device: a workspace that moves, or other kernels, make graphs anew") {
  auto created = cuda::Device::create({.workspace_bytes = 1024});
  REQUIRE(created);
  cuda::Device& on = **created;
  Repeated ops(on);
  on.use_graphs(true);
  const auto calls_of_three = [&] {
    const int before = ops.calls;
    for (int i = 0; i < 3; ++i) REQUIRE(ops.run("sum", 2.0F));
    CHECK_EQ(ops.result(), 6.0F);
    return ops.calls - before;
  };
  CHECK_EQ(calls_of_three(), 2);
  CHECK_EQ(calls_of_three(), 0);
  (void)product_bits(on, 65, 128, 64);  // it needs a larger workspace
  CHECK_EQ(calls_of_three(), 2);
  REQUIRE(on.load_product_table(on.product_table()));
  CHECK_EQ(calls_of_three(), 2);
  on.use_own_attention();
  CHECK_EQ(calls_of_three(), 2);
  on.tune_products(true);
  CHECK_EQ(calls_of_three(), 3);
}

TEST_CASE("device: what cannot be captured is told with the setting that does without graphs") {
  auto created = cuda::Device::create({});
  REQUIRE(created);
  cuda::Device& on = **created;
  on.use_graphs(true);
  auto memory = on.allocate(64);
  REQUIRE(memory);
  const auto waits = [&]() -> base::Result<void> {
    on.fill(memory->get(), 1, 64);
    (void)on.synchronize();
    return {};
  };
  REQUIRE(on.repeat({.name = "a wait"}, waits));
  const auto refused = on.repeat({.name = "a wait"}, waits);
  REQUIRE_FALSE(refused);
  MESSAGE(refused.error().to_string());
  CHECK_NE(refused.error().to_string().find("a CUDA graph of a wait"), std::string::npos);
  CHECK_NE(refused.error().to_string().find("[gpu] graphs = false"), std::string::npos);
  CHECK_FALSE(on.status());
}

TEST_CASE("device: the time of an op is known") {
  auto memory = device().allocate(size_t{1} << 20);
  REQUIRE(memory);
  const auto time = device().milliseconds_of([&] { device().fill(memory->get(), 1, size_t{1} << 20); });
  REQUIRE(time);
  CHECK_GT(*time, 0.0F);
  CHECK_LT(*time, 100.0F);
}

TEST_CASE("device: a link's copies keep their place among the stream's work, forth and back") {
  auto created = cuda::Device::create({});
  REQUIRE(created);
  cuda::Device& on = **created;
  auto link = on.make_link();
  REQUIRE(link);
  constexpr size_t kBytes = size_t{64} << 20;
  auto memory = on.allocate(kBytes);
  auto pinned = (*link)->allocate_pinned(kBytes);
  auto before = (*link)->make_mark(), out = (*link)->make_mark(), back = (*link)->make_mark();
  REQUIRE((memory && pinned && before && out && back));
  using Stream = base::DeviceLink::Stream;
  std::byte* const host = (*pinned)->bytes().data();
  for (int i = 0; i < 20; ++i) on.fill(memory->get(), i, kBytes);
  CHECK((*link)->record(**before, Stream::kCompute));
  CHECK((*link)->wait(Stream::kOut, **before));
  CHECK((*link)->copy(Stream::kOut, host, memory->get(), kBytes));
  CHECK((*link)->record(**out, Stream::kOut));
  for (bool done = false; !done;) {
    auto answer = (*link)->is_done(**out);
    REQUIRE(answer);
    done = *answer;
  }
  CHECK_EQ(host[0], std::byte{19});
  CHECK_EQ(host[kBytes - 1], std::byte{19});
  std::fill_n(host, kBytes, std::byte{77});
  CHECK((*link)->copy(Stream::kIn, memory->get(), host, kBytes));
  CHECK((*link)->record(**back, Stream::kIn));
  CHECK((*link)->wait(Stream::kCompute, **back));
  std::vector<std::byte> seen(kBytes);
  REQUIRE(on.copy_out(seen.data(), memory->get(), kBytes));
  CHECK(seen == std::vector<std::byte>(kBytes, std::byte{77}));
}

TEST_CASE("device: a link does all that it does on a thread that has named no GPU") {
  auto created = cuda::Device::create({});
  REQUIRE(created);
  auto link = (*created)->make_link();
  REQUIRE(link);
  auto mark = (*link)->make_mark();
  REQUIRE(mark);
  using Stream = base::DeviceLink::Stream;
  const auto on_a_thread = [](const auto& call) {
    bool done = false;
    std::thread([&] { done = call(); }).join();
    return done;
  };

  CHECK(on_a_thread([&] { return (*link)->record(**mark, Stream::kOut).has_value(); }));
  CHECK(on_a_thread([&] { return (*link)->wait(Stream::kIn, **mark).has_value(); }));
  CHECK(on_a_thread([&] { return (*link)->is_done(**mark).has_value(); }));
  CHECK(on_a_thread([&] { return (*link)->drain(Stream::kIn).has_value(); }));
  CHECK((*created)->synchronize());
}
