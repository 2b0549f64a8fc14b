#include "runtime/trainer/data/compressed_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>

#include <fmt/format.h>

#include "runtime/base/command.h"
#include "runtime/base/nameless_file.h"

namespace shardrun::data {
namespace {

using base::Code;
using base::Error;
using base::Result;
using base::UniqueFd;

struct Packing {
  std::string_view ending;
  const char* command;
};
constexpr std::array<Packing, 2> kPackings{{{".gz", "gzip"}, {".zst", "zstd"}}};

const Packing* packing_of(std::string_view path) {
  for (const Packing& packing : kPackings)
    if (path.ends_with(packing.ending)) return &packing;
  return nullptr;
}

// Copies until the end of the stream.
Result<void> copy(int from, int to, const std::string& path) {
  std::array<std::byte, 1 << 16> chunk;
  while (true) {
    const ssize_t got = ::read(from, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::errno_error(Code::kIo, fmt::format("unpacking {}", path), errno);
    if (got == 0) return {};
    RETURN_IF_ERROR(base::write_all(to, std::span(chunk.data(), static_cast<size_t>(got)), path));
  }
}

}  // namespace

std::string_view name_when_unpacked(std::string_view path) {
  const Packing* packing = packing_of(path);
  return packing == nullptr ? path : path.substr(0, path.size() - packing->ending.size());
}

Result<UniqueFd> unpack(const std::string& path, const std::string& folder) {
  const Packing* packing = packing_of(path);
  SHARDRUN_CHECK(packing != nullptr);
  ASSIGN_OR_RETURN(UniqueFd file, base::make_nameless_file(folder));
  auto child = base::spawn_command({packing->command, "-dc", "--", path}, {}, /*with_input=*/false);
  if (!child) return std::move(child).error().context(fmt::format("unpacking {}", path));
  Result<void> copied = copy(child->out.get(), file.get(), path);
  child->out.reset();  // so that the command ends where copying has
  std::string words(512, '\0');
  const ssize_t said = ::read(child->err.get(), words.data(), words.size());
  words.resize(said > 0 ? static_cast<size_t>(said) : 0);
  words = words.substr(0, words.find('\n'));
  int status = 0;
  while (::waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
  }
  RETURN_IF_ERROR(copied);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return file;
  return Error(Code::kCorrupt,
               fmt::format("{} cannot be unpacked: {}", path,
                           words.empty() ? std::string(packing->command) + " failed" : words));
}

}  // namespace shardrun::data
