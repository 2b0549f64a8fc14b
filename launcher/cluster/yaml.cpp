#include "launcher/cluster/yaml.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/result.h"
#include "runtime/base/text.h"

namespace shardrun::launcher {
namespace {

constexpr std::string_view kReserved[] = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};

bool is_plain(std::string_view text) {
  if (text.empty() || text.back() == ':') return false;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (!letter(text.front()) && text.front() != '/') return false;
  for (const char c : text) {
    if (!letter(c) && !(c >= '0' && c <= '9') && std::string_view("_./:-").find(c) == std::string_view::npos)
      return false;
  }
  return std::find(std::begin(kReserved), std::end(kReserved), base::lower_case(text)) == std::end(kReserved);
}

}  // namespace

Yaml::Yaml(double number) : Yaml(Kind::kScalar, fmt::format("{}", number)) {}

Yaml Yaml::list(const std::vector<std::string>& items) {
  Yaml all = list();
  for (const std::string& item : items) all.add(item);
  return all;
}

Yaml Yaml::block(const std::string& text) {
  const bool clean = std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return c == '\n' || (byte >= 0x20 && byte < 0x7f) || byte >= 0x80;
  });
  const bool closed = text.size() > 1 && text.back() == '\n' && text[text.size() - 2] != '\n';
  return clean && closed ? Yaml(Kind::kBlock, text) : Yaml(text);
}

Yaml& Yaml::set(std::string key, Yaml value) {
  SHARDRUN_CHECK(kind_ == Kind::kMap);
  const std::string written = quoted(key);
  SHARDRUN_CHECK(std::find(keys_.begin(), keys_.end(), written) == keys_.end());
  keys_.push_back(written);
  items_.push_back(std::move(value));
  return *this;
}

Yaml& Yaml::add(Yaml item) {
  SHARDRUN_CHECK(kind_ == Kind::kList);
  items_.push_back(std::move(item));
  return *this;
}

std::string Yaml::quoted(std::string_view text) {
  if (is_plain(text)) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void Yaml::write(std::string& out, size_t indent, bool continues_line) const {
  if (kind_ == Kind::kBlock) {
    out += "|2\n";
    for (size_t begin = 0; begin < scalar_.size();) {
      const size_t end = scalar_.find('\n', begin) + 1;
      if (end - begin > 1) out.append(indent, ' ');
      out += scalar_.substr(begin, end - begin);
      begin = end;
    }
    return;
  }
  if (kind_ == Kind::kScalar || items_.empty()) {
    out += kind_ == Kind::kScalar ? scalar_ : kind_ == Kind::kMap ? "{}" : "[]";
    out += '\n';
    return;
  }
  for (size_t i = 0; i < items_.size(); ++i) {
    if (i > 0 || !continues_line) out.append(indent, ' ');
    const Yaml& item = items_[i];
    const bool nested = !item.items_.empty();
    if (kind_ == Kind::kList) {
      out += "- ";
      item.write(out, indent + 2, /*continues_line=*/true);
    } else {
      out += keys_[i] + ":" + (nested ? "\n" : " ");
      item.write(out, indent + 2, /*continues_line=*/false);
    }
  }
}

std::string Yaml::to_text() const {
  std::string out;
  write(out, 0, /*continues_line=*/false);
  return out;
}

}  // namespace shardrun::launcher
