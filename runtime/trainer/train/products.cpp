#include "runtime/trainer/train/products.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/io.h"

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;

constexpr uint64_t kMostBytes = uint64_t{1} << 24;
constexpr std::string_view kSeal = "crc32c ", kMaker = "made for ", kOfCheckpoint = "the checkpoint";

// Rank 0's, on every rank.
Result<std::string> rank0s(comm::Communicator& world, std::string text) {
  uint64_t bytes = text.size();
  RETURN_IF_ERROR(comm::broadcast(world, std::as_writable_bytes(std::span(&bytes, 1))));
  text.resize(bytes);
  if (bytes > 0) RETURN_IF_ERROR(comm::broadcast(world, std::as_writable_bytes(std::span(text))));
  return text;
}

std::string seal_of(std::string_view table) {
  return fmt::format("{}{:08x}\n", kSeal, base::crc32c(std::as_bytes(std::span(table))));
}

Result<std::string> read_table(const std::string& path) {
  auto text = base::read_file(path, kMostBytes);
  if (!text) return text;
  const size_t end = text->find('\n');
  std::string table = end == std::string::npos ? std::string() : text->substr(end + 1);
  if (end == std::string::npos || text->substr(0, end + 1) != seal_of(table))
    return Error(Code::kCorrupt, "its checksum is another one");
  return table;
}

Result<void> keep_table(const std::string& path, const std::string& table) {
  RETURN_IF_ERROR(base::make_directories(path.substr(0, path.rfind('/')), 0700));
  return base::write_file_atomically(path, seal_of(table) + table);
}

// Lines after the title and the maker.
int64_t shapes_of(std::string_view table) {
  return std::max<int64_t>(0, std::count(table.begin(), table.end(), '\n') - 2);
}

// On rank 0, whose backend has it loaded.
struct Found {
  std::string table;
  std::string from;  // kOfCheckpoint or the file's path; empty: no table
};

Found find_table(const Session& session, kernels::Backend& backend, const std::string& cache,
                 std::vector<std::string>& notices) {
  if (const std::string& saved = session.gpu_kernels().products; !saved.empty()) {
    const auto loaded = backend.load_product_table(saved);
    if (loaded) return {saved, std::string(kOfCheckpoint)};
    notices.push_back(fmt::format(
        "the checkpoint's table of matrix products is not for this run, whose losses may differ in "
        "their last bits from what they were to be: {}",
        loaded.error().to_string()));
  }
  if (cache.empty()) return {};
  const std::string path = products_file(cache, backend.product_table());
  auto kept = read_table(path);
  if (!kept && kept.error().code() == Code::kNotFound) return {};
  const auto loaded = kept ? backend.load_product_table(*kept) : Result<void>(kept.error());
  if (loaded) return {std::move(*kept), path};
  notices.push_back(
      fmt::format("table of matrix products {} is passed over: {}", path, loaded.error().to_string()));
  return {};
}

// Every rank takes rank 0's `table`; how many cannot, for theirs is another GPU or cublasLt.
Result<int64_t> share(kernels::Backend& backend, comm::Communicator& world, const std::string& table) {
  std::array<double, 1> refusals{table.empty() || backend.load_product_table(table) ? 0.0 : 1.0};
  RETURN_IF_ERROR(comm::complete(world, world.all_reduce(std::span<double>(refusals))));
  return static_cast<int64_t>(refusals[0]);
}

}  // namespace

std::string products_file(const std::string& cache, std::string_view table) {
  std::string name(table.substr(std::min(table.size(), table.find('\n') + 1)));
  name.resize(std::min(name.size(), name.find('\n')));
  if (name.starts_with(kMaker)) name.erase(0, kMaker.size());
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' ? c : '-';
  return cache + "/products/" + name + ".txt";
}

Result<ProductsReport> settle_products(Session& session, kernels::Backend& backend, comm::Communicator& world,
                                       const ProductsOptions& options) {
  ProductsReport report;
  const bool first = world.rank() == 0;
  const Found found = first ? find_table(session, backend, options.cache, report.notices) : Found{};
  const auto from = rank0s(world, found.from);
  if (!from) return from.error();
  auto table = rank0s(world, found.table);
  RETURN_IF_ERROR(table);
  auto refusals = share(backend, world, *table);
  RETURN_IF_ERROR(refusals);

  const int64_t known = shapes_of(*table);
  if (options.tunes && (*from != kOfCheckpoint || known > 0)) {
    backend.tune_products(first);
    auto rehearsed = session.rehearse();
    backend.tune_products(false);
    RETURN_IF_ERROR(std::move(rehearsed));
    if (const auto plain = backend.plain_products(); first && !plain.empty()) {
      report.notices.push_back(fmt::format(
          "cublasLt has no kernel for {} shapes of matrix products, which a plain loop multiplies slowly: {}",
          plain.size(), fmt::join(plain, "; ")));
    }
    table = rank0s(world, first ? backend.product_table() : std::string());
    RETURN_IF_ERROR(table);
    refusals = share(backend, world, *table);
    RETURN_IF_ERROR(refusals);
  }
  const int64_t shapes = shapes_of(*table), timed = shapes - known;
  report.summary = fmt::format("{} shapes", shapes);
  if (!from->empty()) report.summary += fmt::format(", {} of them from {}", known, *from);
  if (timed > 0) report.summary += fmt::format(", {} timed", timed);
  if (first && timed > 0 && !options.cache.empty()) {
    const std::string path = products_file(options.cache, *table);
    if (const auto kept = keep_table(path, *table); !kept)
      report.notices.push_back(
          fmt::format("table of matrix products not kept: {}", kept.error().to_string()));
  }
  if (first && *refusals > 0) {
    report.notices.push_back(fmt::format(
        "{} ranks have another GPU or cublasLt than rank 0 and take cublasLt's first proposals, so "
        "bits depend on which ranks these are",
        *refusals));
  }
  auto kernels = session.gpu_kernels();
  kernels.products = table->empty() ? backend.product_table() : *table;
  session.keep(std::move(kernels));
  return report;
}

}  // namespace shardrun::train
