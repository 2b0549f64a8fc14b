#include "launcher/watch/look.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using std::chrono::steady_clock;

constexpr size_t kLongestAnswer = size_t{64} << 20;

bool wait_for(int fd, short events, steady_clock::time_point deadline) {
  pollfd polled{fd, events, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) return false;
    const int ready = ::poll(&polled, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

Result<base::UniqueFd> connect_to(const std::string& text, uint16_t port, steady_clock::time_point deadline) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1) {
    return Error(Code::kIo, fmt::format("\"{}\" is no address", text));
  }
  base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return base::errno_error(Code::kIo, "a socket", errno);
  const auto fail = [&](int error_number) {
    return base::errno_error(Code::kIo, fmt::format("connecting to {} port {}", text, port), error_number);
  };
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno != EINPROGRESS) return fail(errno);
    if (!wait_for(fd.get(), POLLOUT, deadline)) return fail(ETIMEDOUT);
    int failure = 0;
    socklen_t length = sizeof failure;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failure, &length);
    if (failure != 0) return fail(failure);
  }
  return fd;
}

// Returns all that comes until the other side closes.
Result<std::string> ask(int fd, const std::string& line, steady_clock::time_point deadline) {
  RETURN_IF_ERROR(base::write_all(fd, line + "\n", "the conductor"));
  std::string text;
  std::array<char, 65536> chunk;
  while (text.size() < kLongestAnswer) {
    if (!wait_for(fd, POLLIN, deadline)) return Error(Code::kIo, "the conductor does not answer in time");
    const ssize_t got = ::recv(fd, chunk.data(), chunk.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::errno_error(Code::kIo, "reading the conductor's answer", errno);
    if (got == 0) return text;
    text.append(chunk.data(), got);
  }
  return Error(Code::kIo, "the conductor's answer does not end");
}

Result<std::vector<contract::RankSight>> parse_answer(std::string_view text, const std::string& answer) {
  const std::string welcome = fmt::format("welcome {}\n", answer);
  if (!text.starts_with(welcome))
    return Error(Code::kIo, "what answers is not the conductor of this attempt");
  text.remove_prefix(welcome.size());
  std::vector<contract::RankSight> sights;
  while (text != "end\n") {
    const size_t end = text.find('\n');
    auto sight = contract::parse_rank_sight(text.substr(0, end));
    if (end == std::string_view::npos || !sight) return Error(Code::kIo, "the conductor's answer is cut off");
    sights.push_back(std::move(*sight));
    text.remove_prefix(end + 1);
  }
  return sights;
}

}  // namespace

Result<std::vector<contract::RankSight>> look_at_ranks(const contract::WatchPlace& place) {
  Error last(Code::kIo, "the conductor says no address");
  for (const std::string& address : place.addresses) {
    const auto deadline = steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                                    std::chrono::duration<double>(kLookSeconds));
    auto fd = connect_to(address, place.port, deadline);
    if (!fd) {
      last = std::move(fd).error();
      continue;
    }
    ASSIGN_OR_RETURN(auto text, ask(fd->get(), contract::look_line(place.token), deadline));
    return parse_answer(text, place.answer);
  }
  return last;
}

}  // namespace shardrun::launcher
