#include "runtime/rank/redaction.h"

#include <doctest/doctest.h>

#include <random>

using namespace shardrun::rank;

namespace {

std::string redacted(const std::vector<Secret>& secrets, const std::vector<std::string>& pieces) {
  Redactor redactor(secrets);
  std::string out;
  const auto sink = [&](std::string_view bytes) { out += bytes; };
  for (const std::string& piece : pieces) redactor.append(piece, sink);
  redactor.finish(sink);
  return out;
}

// Returns what the whole text should become: from the left, the longest secret at each place.
std::string expected(const std::vector<Secret>& secrets, const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Secret* longest = nullptr;
    for (const Secret& secret : secrets) {
      const bool here = text.compare(at, secret.value.size(), secret.value) == 0;
      if (here && (longest == nullptr || secret.value.size() > longest->value.size())) longest = &secret;
    }
    out += longest == nullptr ? text.substr(at, 1) : "[redacted " + longest->name + "]";
    at += longest == nullptr ? 1 : longest->value.size();
  }
  return out;
}

}  // namespace

TEST_CASE("redaction: a secret is found wherever the stream was cut, and its name takes its place") {
  const std::vector<Secret> secrets = {{"A_TOKEN", "hunter2!"}};
  CHECK(redacted(secrets, {"pass hunter2! word\n"}) == "pass [redacted A_TOKEN] word\n");
  CHECK(redacted(secrets, {"pass hun", "te", "r2! word\n"}) == "pass [redacted A_TOKEN] word\n");
  CHECK(redacted(secrets, {"hunter2!hunter2!"}) == "[redacted A_TOKEN][redacted A_TOKEN]");
  CHECK(redacted(secrets, {"hunter2", "\n"}) == "hunter2\n");
  CHECK(redacted(secrets, {"hhunter2!", "hunt"}) == "h[redacted A_TOKEN]hunt");
}

TEST_CASE(
    "redaction: a private key is taken out line by line, whatever stands before its lines and wherever it is "
    "cut") {
  const std::string text =
      "before -----\n10:00 -----BEGIN RSA PRIVATE KEY-----\n10:01 MIIEow\n10:02 AAAA\n10:03 -----END RSA "
      "PRIVATE KEY-----\nafter\n";
  const std::string clean = "before -----\n10:00 [redacted private key]\nafter\n";
  CHECK_EQ(redacted({}, {text}), clean);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    CAPTURE(cut);
    CHECK_EQ(redacted({}, {text.substr(0, cut), text.substr(cut)}), clean);
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  CHECK_EQ(redacted({{"A_TOKEN", "hunter2!"}}, bytes), clean);
  CHECK_EQ(redacted({}, {"-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"}),
           "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n");
  CHECK_EQ(redacted({}, {"-----BEGIN "}), "-----BEGIN ");
  CHECK_EQ(redacted({}, {"-----BEGIN PRIVATE KEY-----\nMII"}), "[redacted private key]");
}

TEST_CASE("redaction: a beginning of a private key that never ends hides a bounded part of a log") {
  std::string shown;
  const auto sink = [&](std::string_view bytes) { shown += bytes; };
  Redactor redactor(std::vector<Secret>{});
  redactor.append("-----BEGIN PRIVATE KEY-----\n", sink);
  for (int i = 0; i < 10000; ++i) redactor.append("a line of 20 bytes..\n", sink);
  redactor.finish(sink);
  CHECK(shown.ends_with("a line of 20 bytes..\n"));
  CHECK_GT(shown.size(), 140000);
  CHECK_LT(shown.size(), 150000);
}

TEST_CASE("redaction: the long lines of a secret, and the password in a URL, are secrets of their own") {
  const std::vector<std::string> inherited = {"SERVICE_KEY=short\nthe longest line of it\n",
                                              "QUEUE=amqp://me:hunter2!@host/x", "PLAIN=https://host/x"};
  const auto secrets = find_secrets({}, inherited);
  CHECK_EQ(redacted(secrets, {"a the longest line of it b short me:hunter2! https://host/x\n"}),
           "a [redacted SERVICE_KEY] b short me:[redacted QUEUE] https://host/x\n");
}

TEST_CASE("redaction: only an end that may be the beginning of a secret waits for more") {
  Redactor redactor(std::vector<Secret>{{"A_TOKEN", "hunter2!"}});
  std::string out;
  const auto sink = [&](std::string_view bytes) { out += bytes; };
  redactor.append("a line\n", sink);
  CHECK(out == "a line\n");
  redactor.append("a hunt", sink);
  CHECK(out == "a line\na ");
  redactor.append(" began\n", sink);
  CHECK(out == "a line\na hunt began\n");
}

TEST_CASE(
    "redaction: random secrets in random texts cut at random places leave what one look at the whole "
    "leaves") {
  std::mt19937 random(7);
  const auto text_of = [&](size_t length) {
    std::string text;
    while (text.size() < length) text += "ab"[random() % 2];
    return text;
  };
  size_t found = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<Secret> secrets;
    for (size_t i = 0; i < 1 + random() % 3; ++i) {
      secrets.push_back({std::to_string(i), text_of(1 + random() % 5)});
    }
    const std::string text = text_of(random() % 24);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, 1 + random() % 6));
      at += pieces.back().size();
    }
    const std::string out = redacted(secrets, pieces);
    std::string wanted = expected(secrets, text);
    // Where one value has two names, either may be said.
    bool twice = false;
    for (const Secret& left : secrets) {
      for (const Secret& right : secrets) twice = twice || (&left != &right && left.value == right.value);
    }
    if (twice) continue;
    CHECK(out == wanted);
    found += wanted != text ? 1 : 0;
  }
  CHECK(found > 5000);
}

TEST_CASE(
    "redaction: references and inherited names of secrets are taken, literals and short values are not") {
  using shardrun::spec::EnvironmentValue;
  const std::map<std::string, EnvironmentValue> environment = {
      {"MODE", {EnvironmentValue::Kind::kLiteral, "benchmark"}},
      {"LOGIN", {EnvironmentValue::Kind::kFromVariable, "MY_LOGIN"}},
      {"GONE", {EnvironmentValue::Kind::kFromVariable, "NOT_SET"}},
      {"SHORT", {EnvironmentValue::Kind::kFromVariable, "DIGITS"}}};
  std::string names;
  for (const Secret& secret :
       find_secrets(environment, {"MY_LOGIN=a=b c d", "DIGITS=12345", "HF_TOKEN=hf_abcdef", "PATH=/usr/bin",
                                  "API_KEY=short", "no equals sign"})) {
    names += secret.name + "=" + secret.value + ";";
  }
  CHECK(names == "LOGIN=a=b c d;HF_TOKEN=hf_abcdef;");
}
