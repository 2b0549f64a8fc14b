#include "runtime/rank/redaction.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/contract/rank_env.h"

namespace shardrun::rank {

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
    if (value.size() >= kShortestSecret) secrets.push_back({name, value});
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
    if (spec::looks_secret(name)) keep(name, value);
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
  if (secrets_.empty()) {
    sink(bytes);
    return;
  }
  pending_ += bytes;
  while (true) {
    const Match match = first_match();
    const size_t unfinished = unfinished_match();
    if (match.secret == nullptr || match.at >= unfinished) {
      if (unfinished > 0) sink(std::string_view(pending_).substr(0, unfinished));
      pending_.erase(0, unfinished);
      return;
    }
    sink(pending_.substr(0, match.at) + fmt::format("[redacted {}]", match.secret->name));
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
  if (!out.empty()) sink(out);
}

}  // namespace shardrun::rank
