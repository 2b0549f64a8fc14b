#include "runtime/rank/redaction.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "runtime/contract/rank_env.h"
#include "runtime/spec/secrets.h"

namespace shardrun::rank {

namespace {

// Adds the long lines of a value of several lines, which a program may print one by one.
void add_lines(const std::string& name, const std::string& value, std::vector<Secret>& secrets) {
  constexpr size_t kShortestLine = 16, kMostLines = 200;
  if (value.find('\n') == std::string::npos) return;
  std::istringstream lines(value);
  std::string line;
  for (size_t i = 0; i < kMostLines && std::getline(lines, line); ++i) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.size() >= kShortestLine && !line.starts_with("-----")) secrets.push_back({name, line});
  }
}

constexpr std::string_view kKeyBegins = "-----BEGIN ", kKeyEnds = "-----END ";
constexpr size_t kLongestLabel = 48;  // "ENCRYPTED PRIVATE KEY-----" and what may come
constexpr size_t kLongestKey = size_t{64}
                               << 10;  // a key that does not end is none: what follows is shown again

// Returns the size of the longest end of `text` with which `word` begins.
size_t begun(std::string_view text, std::string_view word) {
  size_t size = std::min(text.size(), word.size() - 1);
  while (!text.ends_with(word.substr(0, size))) --size;
  return size;
}

}  // namespace

std::vector<Secret> find_secrets(const std::map<std::string, spec::EnvironmentValue>& environment,
                                 const std::vector<std::string>& inherited) {
  std::map<std::string, std::string> variables;
  for (const std::string& variable : inherited) {
    const size_t equals = variable.find('=');
    if (equals != std::string::npos)
      variables.emplace(variable.substr(0, equals), variable.substr(equals + 1));
  }
  std::vector<Secret> secrets;
  const auto keep = [&](const std::string& name, const std::string& value) {
    if (value.size() < kShortestSecret) return;
    secrets.push_back({name, value});
    if (const auto password = spec::password_in_url(value); password.size() >= kShortestSecret)
      secrets.push_back({name, std::string(password)});
    add_lines(name, value, secrets);
  };
  const contract::EnvironmentLookup lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  for (const auto& [name, value] : environment) {
    if (value.kind == spec::EnvironmentValue::Kind::kLiteral) continue;
    const auto resolved = contract::resolve_environment({{name, value}}, lookup);
    if (resolved) keep(name, resolved->at(name));
  }
  for (const auto& [name, value] : variables) {
    if (spec::looks_secret(name) || !spec::password_in_url(value).empty()) keep(name, value);
  }
  return secrets;
}

Redactor::Redactor(std::vector<Secret> secrets) : secrets_(std::move(secrets)) {
  std::stable_sort(secrets_.begin(), secrets_.end(),
                   [](const Secret& a, const Secret& b) { return a.value.size() > b.value.size(); });
}

// Returns the leftmost match, and the longest of those that begin there; npos when there is none.
Redactor::Match Redactor::first_match() const {
  Match first{std::string::npos, nullptr};
  for (const Secret& secret : secrets_) {
    const size_t at = pending_.find(secret.value);
    if (at < first.at) first = {at, &secret};
  }
  return first;
}

// Returns where the earliest end of `pending_` begins with which a secret starts and goes on; the size of
// `pending_` when there is none.
size_t Redactor::unfinished_match() const {
  size_t first = pending_.size();
  for (const Secret& secret : secrets_) {
    const size_t longest = std::min(secret.value.size() - 1, pending_.size());
    for (size_t at = pending_.size() - longest; at < first; ++at) {
      if (std::string_view(secret.value).starts_with(std::string_view(pending_).substr(at))) first = at;
    }
  }
  return first;
}

void Redactor::append(std::string_view bytes, const Sink& sink) {
  const Sink next = [&](std::string_view clean) { keys_.append(clean, sink); };
  if (secrets_.empty()) {
    next(bytes);
    return;
  }
  pending_ += bytes;
  while (true) {
    const Match match = first_match();
    const size_t unfinished = unfinished_match();
    if (match.secret == nullptr || match.at >= unfinished) {
      if (unfinished > 0) next(std::string_view(pending_).substr(0, unfinished));
      pending_.erase(0, unfinished);
      return;
    }
    next(pending_.substr(0, match.at) + fmt::format("[redacted {}]", match.secret->name));
    pending_.erase(0, match.at + match.secret->value.size());
  }
}

void Redactor::finish(const Sink& sink) {
  std::string out;
  for (Match match = first_match(); match.secret != nullptr; match = first_match()) {
    out += pending_.substr(0, match.at) + fmt::format("[redacted {}]", match.secret->name);
    pending_.erase(0, match.at + match.secret->value.size());
  }
  out += pending_;
  pending_.clear();
  if (!out.empty()) keys_.append(out, sink);
  keys_.finish(sink);
}

void PrivateKeys::append(std::string_view bytes, const Sink& sink) {
  pending_ += bytes;
  std::string out;
  while (inside_ ? skip_key() : pass_to_key(out)) continue;
  if (!out.empty()) sink(out);
}

// Moves what comes before a key to `out`. Returns true when a key has begun.
bool PrivateKeys::pass_to_key(std::string& out) {
  const auto pass = [&](size_t size) {
    out += pending_.substr(0, size);
    pending_.erase(0, size);
  };
  while (true) {
    const size_t at = pending_.find(kKeyBegins);
    if (at == std::string::npos) {
      pass(pending_.size() - begun(pending_, kKeyBegins));
      return false;
    }
    pass(at);
    const std::string_view label = std::string_view(pending_).substr(kKeyBegins.size(), kLongestLabel);
    const size_t end = label.find("-----");
    if (end == std::string_view::npos && label.size() < kLongestLabel && label.find('\n') == label.npos)
      return false;
    if (end != std::string_view::npos && label.substr(0, end).find("PRIVATE KEY") != label.npos) break;
    pass(kKeyBegins.size());
  }
  out += "[redacted private key]";
  inside_ = true;
  hidden_bytes_ = 0;
  return true;
}

// Drops what belongs to a key. Returns true when it has ended.
bool PrivateKeys::skip_key() {
  const size_t at = pending_.find(kKeyEnds);
  const size_t end = at == std::string::npos ? at : pending_.find("-----", at + kKeyEnds.size());
  const size_t dropped = end != std::string::npos  ? end + 5
                         : at != std::string::npos ? at
                                                   : pending_.size() - begun(pending_, kKeyEnds);
  hidden_bytes_ += dropped;
  pending_.erase(0, dropped);
  inside_ = end == std::string::npos && hidden_bytes_ < kLongestKey &&
            pending_.size() < kLongestLabel + kKeyEnds.size();
  return !inside_;
}

void PrivateKeys::finish(const Sink& sink) {
  if (!inside_ && !pending_.empty()) sink(pending_);
  pending_.clear();
}

}  // namespace shardrun::rank
