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
#include "runtime/contract/sealed_lines.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using std::chrono::steady_clock;

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

// What a connection says, line by line.
class LineReader {
 public:
  LineReader(int fd, steady_clock::time_point deadline) : fd_(fd), deadline_(deadline) {}

  Result<std::string> next() {
    size_t end = 0;
    while ((end = received_.find('\n', begin_)) == std::string::npos) RETURN_IF_ERROR(read_more());
    std::string line = received_.substr(begin_, end - begin_);
    begin_ = end + 1;
    return line;
  }

 private:
  Result<void> read_more() {
    received_.erase(0, begin_);
    begin_ = 0;
    if (received_.size() > contract::kLongestLine)
      return Error(Code::kIo, "the conductor's answer does not end");
    std::array<char, 65536> chunk;
    if (!wait_for(fd_, POLLIN, deadline_)) return Error(Code::kIo, "the conductor does not answer in time");
    const ssize_t got = ::recv(fd_, chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return {};
    if (got < 0) return base::errno_error(Code::kIo, "reading the conductor's answer", errno);
    if (got == 0) return Error(Code::kIo, "the conductor's answer is cut off");
    received_.append(chunk.data(), got);
    return {};
  }

  int fd_;
  steady_clock::time_point deadline_;
  std::string received_;
  size_t begin_ = 0;
};

Result<std::vector<contract::RankSight>> ask(int fd, const common::Key& key,
                                             steady_clock::time_point deadline) {
  const auto stranger = [] { return Error(Code::kIo, "what answers is not the conductor of this attempt"); };
  LineReader reader(fd, deadline);
  ASSIGN_OR_RETURN(auto nonce, contract::random_key());
  contract::SealedLines lines(contract::SealedLines::Side::kClient, key, nonce);
  ASSIGN_OR_RETURN(auto opening, reader.next());
  if (!lines.take_opening(opening)) return stranger();
  const std::string question = lines.opening() + "\n" + lines.seal(contract::kLookLine) + "\n";
  RETURN_IF_ERROR(base::write_all(fd, question, "the conductor"));
  std::vector<contract::RankSight> sights;
  for (bool welcome = false;; welcome = true) {
    ASSIGN_OR_RETURN(auto line, reader.next());
    const auto text = lines.unseal(line);
    if (!text || (!welcome && *text != contract::kWelcomeLine)) return stranger();
    if (!welcome) continue;
    if (*text == contract::kEndLine) return sights;
    auto sight = contract::parse_rank_sight(*text);
    if (!sight) return Error(Code::kIo, "the conductor speaks another version");
    sights.push_back(std::move(*sight));
  }
}

}  // namespace

Result<std::vector<contract::RankSight>> look_at_ranks(const contract::WatchPlace& place) {
  common::Key key;
  if (!common::from_hex(place.key, &key))
    return Error(Code::kIo, "watch.json has no key: another version of shardrun wrote it");
  Error last(Code::kIo, "the conductor says no address");
  for (const std::string& address : place.addresses) {
    const auto deadline = steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                                    std::chrono::duration<double>(kLookSeconds));
    auto fd = connect_to(address, place.port, deadline);
    if (!fd) {
      last = std::move(fd).error();
      continue;
    }
    return ask(fd->get(), key, deadline);
  }
  return last;
}

Result<std::vector<contract::RankSight>> look_at_ranks(const record::RunDir& run, int attempt) {
  ASSIGN_OR_RETURN(const auto text, base::read_file(run.watch_json(attempt), /*limit_bytes=*/1 << 20));
  ASSIGN_OR_RETURN(const auto place, contract::parse_watch_place(text));
  return look_at_ranks(place);
}

}  // namespace shardrun::launcher
