#include "runtime/spec/secrets.h"

#include <string>

namespace shardrun::spec {

bool looks_secret(std::string_view variable) {
  std::string upper(variable);
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  for (const std::string_view end : {"TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE",
                                     "APIKEY", "CREDENTIAL", "CREDENTIALS"}) {
    if (upper.ends_with(end)) return true;
  }
  if (upper.ends_with("DATABASE_URL") || upper.ends_with("_PWD")) return true;  // PWD is the shell's folder
  // Short words count alone only: MONKEY, COMPASS and SPAT are none.
  const std::string_view last = std::string_view(upper).substr(upper.rfind('_') + 1);
  return last == "KEY" || last == "KEYS" || last == "PAT" || last == "PASS" || last == "DSN";
}

std::string_view password_in_url(std::string_view value) {
  const size_t scheme = value.find("://");
  if (scheme == std::string_view::npos) return {};
  const std::string_view authority =
      value.substr(scheme + 3, value.find_first_of("/?#", scheme + 3) - (scheme + 3));
  const size_t at = authority.rfind('@'), colon = authority.find(':');
  if (at == std::string_view::npos || colon == std::string_view::npos || colon + 1 >= at) return {};
  return authority.substr(colon + 1, at - colon - 1);
}

}  // namespace shardrun::spec
