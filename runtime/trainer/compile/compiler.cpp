#include "runtime/trainer/compile/compiler.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/command.h"
#include "runtime/base/io.h"
#include "runtime/base/trust.h"

namespace shardrun::compile {
namespace {

using base::Code;
using base::Error;

constexpr std::chrono::minutes kLongestCompilation{10};

Result<std::string> first_in_path(std::string_view program) {
  const char* const variable = std::getenv("PATH");
  std::string_view rest = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string candidate = fmt::format("{}/{}", rest.substr(0, end), program);
    if (candidate.front() == '/' && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return Error(Code::kNotFound,
               fmt::format("no {} in PATH; install g++ on every node, or remove [precompile]", program));
}

// A folder that goes with all it holds.
class Workshop {
 public:
  static Result<Workshop> make(const std::string& parent) {
    std::string path = parent + "/.compiling.XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return base::errno_error(Code::kIo, path, errno);
    return Workshop(std::move(path));
  }
  Workshop(Workshop&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  Workshop& operator=(Workshop&&) = delete;
  ~Workshop() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

  Result<void> put(std::string_view name, std::string_view text) const {
    const std::string path = fmt::format("{}/{}", path_, name);
    RETURN_IF_ERROR(base::make_directories(std::filesystem::path(path).parent_path().string(), 0700));
    return base::write_file_atomically(path, text, 0600, base::Durability::kProcess);
  }

 private:
  explicit Workshop(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace

Result<CxxCompiler> CxxCompiler::find() {
  auto path = first_in_path("c++");
  if (!path) return std::move(path).error();
  RETURN_IF_ERROR(base::refuse_if_others_write(*path));
  auto version = base::run_command({*path, "--version"});
  if (!version) return std::move(version).error();
  auto machine = base::run_command({*path, "-dumpmachine"});
  if (!machine) return std::move(machine).error();
  CxxCompiler compiler;
  compiler.path_ = std::move(*path);
  compiler.identity_ =
      version->out.substr(0, version->out.find('\n')) + " " + machine->out.substr(0, machine->out.find('\n'));
  return compiler;
}

std::vector<std::string> CxxCompiler::flags() const {
  const auto flags = kernels::kernel_flags();
  return {flags.begin(), flags.end()};
}

Result<Entry> CxxCompiler::compile(const Recipe& recipe, const std::string& scratch,
                                   const std::function<void()>& tick) const {
  const auto begin = std::chrono::steady_clock::now();
  auto workshop = Workshop::make(scratch);
  if (!workshop) return std::move(workshop).error();
  for (const kernels::SourceFile& file : kernels::kernel_sources())
    RETURN_IF_ERROR(workshop->put(file.path, file.text));
  RETURN_IF_ERROR(workshop->put("kernel.cpp", recipe.translation_unit));
  const std::string library = workshop->path() + "/kernel.so";
  std::vector<std::string> argv = {path_};
  argv.insert(argv.end(), recipe.flags.begin(), recipe.flags.end());
  argv.insert(argv.end(), {"-I" + workshop->path(), "-o", library, workshop->path() + "/kernel.cpp"});
  auto output = base::finish_command(argv, "", kLongestCompilation, tick);
  if (!output) return std::move(output).error();
  Entry entry;
  entry.name = kernels::name_of(recipe.shape);
  entry.milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
  if (WIFSIGNALED(output->status)) {
    return Error(Code::kCancelled, fmt::format("{} was killed by signal {} while it compiled {}", path_,
                                               WTERMSIG(output->status), entry.name));
  }
  if (WEXITSTATUS(output->status) != 0) {
    entry.kind = Entry::Kind::kFailure;
    entry.payload = output->err + output->out;
    return entry;
  }
  auto bytes = base::read_file(library);
  if (!bytes) return std::move(bytes).error();
  entry.payload = std::move(*bytes);
  return entry;
}

}  // namespace shardrun::compile
