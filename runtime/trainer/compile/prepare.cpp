#include "runtime/trainer/compile/prepare.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "runtime/trainer/compile/lease.h"
#include "runtime/trainer/compile/recipe.h"

namespace shardrun::compile {
namespace {

using base::Code;
using base::Error;
using Clock = std::chrono::steady_clock;

struct Wanted {
  Recipe recipe;
  std::string digest;
  bool looked = false;
  std::optional<std::string> code;
};

// What the workers of one caller share; they differ in the kernel they stand at.
class Preparer {
 public:
  Preparer(const KernelCache& cache, const Compiler& compiler, std::span<const kernels::KernelShape> shapes,
           const PrepareOptions& options)
      : cache_(cache), compiler_(compiler), options_(options) {
    std::vector<kernels::KernelShape> sorted(shapes.begin(), shapes.end());
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    for (const kernels::KernelShape& shape : sorted) {
      Recipe recipe = recipe_of(shape, compiler.identity(), compiler.flags());
      std::string digest = digest_of(recipe);
      wanted_.push_back({std::move(recipe), std::move(digest), false, std::nullopt});
    }
  }

  Result<Preparation> run() {
    std::vector<std::thread> workers;
    for (int worker = 1; worker < options_.workers; ++worker) workers.emplace_back([this] { work(true); });
    work(options_.workers > 0);
    for (std::thread& worker : workers) worker.join();
    if (error_) return *error_;
    for (Wanted& wanted : wanted_) result_.kernels.push_back({wanted.recipe.shape, std::move(*wanted.code)});
    return std::move(result_);
  }

 private:
  void work(bool may_compile) {
    constexpr std::chrono::milliseconds kShortestNap{5}, kLongestNap{200};
    const auto deadline = Clock::now() + options_.longest_wait;
    auto nap = kShortestNap;
    while (true) {
      bool all_there = true, progress = false;
      std::string waits_for;
      for (Wanted& wanted : wanted_) {
        const auto step = advance(wanted, may_compile, waits_for);
        if (!step) return fail(step.error());
        all_there = all_there && *step != Step::kNothing;
        progress = progress || *step == Step::kMade;
      }
      if (all_there || failed_) return;
      if (progress) nap = kShortestNap;
      if (Clock::now() > deadline) {
        return fail(Error(Code::kTimeout, fmt::format("after {} s still waiting for {}",
                                                      options_.longest_wait.count(), waits_for)));
      }
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, kLongestNap);
    }
  }

  enum class Step { kNothing, kThere, kMade };

  // One kernel: there already, made by us now, or with somebody else.
  Result<Step> advance(Wanted& wanted, bool may_compile, std::string& waits_for) {
    if (has(wanted)) return Step::kThere;
    auto found = look_up(wanted);
    if (!found || *found) return found ? Result<Step>(Step::kThere) : std::move(found).error();
    waits_for = kernels::name_of(wanted.recipe.shape);
    if (!may_compile) return Step::kNothing;
    std::string holder;
    auto lease = Lease::take(cache_.lease_of(wanted.digest), &holder);
    if (!lease) return std::move(lease).error();
    if (!*lease) {
      waits_for += fmt::format(", which {} compiles", holder);
      return Step::kNothing;
    }
    // Published between our look and our lease?
    found = look_up(wanted);
    if (!found || *found) return found ? Result<Step>(Step::kThere) : std::move(found).error();
    auto entry = compiler_.compile(wanted.recipe, cache_.folder(), [&] { (*lease)->renew(); });
    if (!entry) return std::move(entry).error();
    RETURN_IF_ERROR(check(wanted, *entry));
    RETURN_IF_ERROR(cache_.publish(wanted.digest, *entry));
    {
      const std::lock_guard lock(mutex_);
      ++result_.compiled;
      result_.compile_seconds += static_cast<double>(entry->milliseconds) / 1e3;
    }
    RETURN_IF_ERROR(accept(wanted, std::move(*entry)));
    return Step::kMade;
  }

  bool has(const Wanted& wanted) {
    const std::lock_guard lock(mutex_);
    return wanted.code.has_value();
  }

  // True when the entry is there, and is taken.
  Result<bool> look_up(Wanted& wanted) {
    std::string damage;
    auto entry = cache_.look_up(wanted.digest, &damage);
    if (!entry) return std::move(entry).error();
    if (*entry) {
      // The bytes are those that somebody wrote; whether they are this kernel's is another question.
      if (auto right = check(wanted, **entry); !right) {
        damage =
            fmt::format("{}: {}; it is made again", cache_.path_of(wanted.digest), right.error().to_string());
        RETURN_IF_ERROR(cache_.forget(wanted.digest));
        entry->reset();
      }
    }
    const std::lock_guard lock(mutex_);
    if (!damage.empty()) options_.notice(damage);
    const bool first_look = !wanted.looked;
    wanted.looked = true;
    if (!*entry || wanted.code) return wanted.code.has_value();
    if ((*entry)->kind == Entry::Kind::kFailure && options_.forget_failures && first_look) {
      RETURN_IF_ERROR(cache_.forget(wanted.digest));
      return false;
    }
    RETURN_IF_ERROR(accept_locked(wanted, std::move(**entry)));
    return true;
  }

  Result<void> check(const Wanted& wanted, const Entry& entry) const {
    if (entry.kind == Entry::Kind::kFailure) return {};
    return compiler_.check(wanted.recipe, entry.payload);
  }

  Result<void> accept(Wanted& wanted, Entry entry) {
    const std::lock_guard lock(mutex_);
    return accept_locked(wanted, std::move(entry));
  }
  Result<void> accept_locked(Wanted& wanted, Entry entry) {
    if (entry.kind == Entry::Kind::kFailure) {
      return Error(
          Code::kRefused,
          fmt::format("{} does not compile, as {} remembers; once the cause is mended, `shardrun precompile "
                      "--retry` with this job tries again; the compiler said:\n{}",
                      entry.name, cache_.path_of(wanted.digest), entry.payload));
    }
    result_.recorded_seconds += static_cast<double>(entry.milliseconds) / 1e3;
    wanted.code = std::move(entry.payload);
    return {};
  }

  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    failed_ = true;
  }

  const KernelCache& cache_;
  const Compiler& compiler_;
  const PrepareOptions& options_;
  std::vector<Wanted> wanted_;  // `looked` and `code` under the mutex
  std::mutex mutex_;
  Preparation result_;
  std::optional<Error> error_;
  std::atomic<bool> failed_{false};
};

}  // namespace

Result<Preparation> prepare(const KernelCache& cache, const Compiler& compiler,
                            std::span<const kernels::KernelShape> shapes, const PrepareOptions& options) {
  return Preparer(cache, compiler, shapes, options).run();
}

}  // namespace shardrun::compile
