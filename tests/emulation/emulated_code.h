// How a shared object for the CPU travels as a cubin: the bytes of tests/support/fake_cubin.h with its functions,
// then a word, the object's size, and the object's bytes.
//
// Thread rule: pure functions.
#pragma once

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace shardrun::emulation {

inline constexpr unsigned kArchitecture = 90;  // the architecture of the emulated GPU
inline constexpr char kWord[8] = {'e', 'm', 'u', 'l', 'a', 't', 'e', 'd'};

inline std::string with_object(const std::string& cubin, std::string_view object) {
  const uint64_t size = object.size();
  std::string all = cubin;
  all.append(kWord, sizeof kWord);
  all.append(reinterpret_cast<const char*>(&size), sizeof size);
  return all.append(object);
}

struct Object {
  unsigned architecture;
  std::string_view bytes;
};
inline std::optional<Object> object_in(const char* code) {
  Elf64_Ehdr header;
  std::memcpy(&header, code, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return std::nullopt;
  uint64_t end = header.e_shoff + uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, code + header.e_shoff + i * sizeof section, sizeof section);
    end = std::max<uint64_t>(end, section.sh_offset + section.sh_size);
  }
  const unsigned architecture = header.e_flags >> 8 & 0xffU;
  if (std::memcmp(code + end, kWord, sizeof kWord) != 0) return std::nullopt;
  uint64_t size = 0;
  std::memcpy(&size, code + end + sizeof kWord, sizeof size);
  return Object{architecture, {code + end + sizeof kWord + sizeof size, size}};
}

}  // namespace shardrun::emulation
