// One table of matrix products for a job on GPUs (kernels::Backend::product_table): which kernels its products take.
//
// Kernels differ in their bits, and timing them differs from run to run. So the table is part of a run: every rank takes
// the same one before its first step, and each checkpoint has it. It is the one of the checkpoint that the run continues;
// else that of the cache, for this GPU and cublasLt. What it lacks rank 0 times in micro-steps without any consequence, and
// keeps in the cache: a run that begins again begins with the same bits.
//
// The cache's file, products/<cublasLt and GPU>.txt: "crc32c <8 hex digits>", of all that follows, and the table.
// Thread rule: as Session. Tests: tests/gpu/training_products_test.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/train/session.h"

namespace shardrun::train {

// In the folder `cache`, the file of tables made by whoever made this one.
std::string products_file(const std::string& cache, std::string_view table);

struct ProductsOptions {
  std::string cache{};  // a folder that nobody else may write; empty: none is read or kept
  bool tunes = true;    // false: shapes that no table has take cublasLt's first proposals, which repeat
};

struct ProductsReport {
  std::string summary;               // "24 shapes, 20 of them from …, 4 timed"
  std::vector<std::string> notices;  // on rank 0: of tables that could not be used or kept
};

// Collective over `world`, after start() or resume() and before the first step. A table that cannot be used is no error:
// it is named, and the next one is looked for. Jobs that keep tables at once leave the whole of one. A checkpoint's table
// without any shape is of a run that timed none, and this one does neither.
Result<ProductsReport> settle_products(Session& session, kernels::Backend& backend, comm::Communicator& world,
                                       const ProductsOptions& options);

}  // namespace shardrun::train
