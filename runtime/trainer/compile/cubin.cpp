#include "runtime/trainer/compile/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>

namespace shardrun::compile {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr uint16_t kMachineCuda = 190;
constexpr unsigned char kNewLayout = 8;  // ABI version from CUDA 13 on

// A copy, because nothing says that the bytes are aligned.
template <typename T>
std::optional<T> read_at(std::string_view bytes, uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::optional<std::string_view> part_of(std::string_view bytes, const Elf64_Shdr& section) {
  if (section.sh_offset > bytes.size() || section.sh_size > bytes.size() - section.sh_offset)
    return std::nullopt;
  return bytes.substr(section.sh_offset, section.sh_size);
}

std::optional<std::string> text_at(std::string_view table, uint64_t offset) {
  if (offset >= table.size()) return std::nullopt;
  const size_t end = table.find('\0', offset);
  if (end == table.npos) return std::nullopt;
  return std::string(table.substr(offset, end - offset));
}

// CUDA 13 moved the architecture to the second byte of the flags.
int architecture_of(const Elf64_Ehdr& header) {
  const unsigned shift = header.e_ident[EI_ABIVERSION] >= kNewLayout ? 8 : 0;
  return static_cast<int>(header.e_flags >> shift & 0xffU);
}

}  // namespace

Result<Cubin> parse_cubin(std::string_view bytes) {
  const Error refused(Code::kCorrupt, "no cubin, or cut off");
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB ||
      header->e_machine != kMachineCuda || header->e_shentsize != sizeof(Elf64_Shdr)) {
    return refused;
  }
  Cubin cubin{fmt::format("sm_{}", architecture_of(*header)), {}};
  const auto section_at = [&](uint64_t index) -> std::optional<Elf64_Shdr> {
    if (index >= header->e_shnum || header->e_shoff > bytes.size()) return std::nullopt;
    return read_at<Elf64_Shdr>(bytes, header->e_shoff + index * sizeof(Elf64_Shdr));
  };
  for (uint64_t index = 0; index < header->e_shnum; ++index) {
    const auto section = section_at(index);
    if (!section) return refused;
    if (section->sh_type != SHT_NOBITS && !part_of(bytes, *section)) return refused;
    if (section->sh_type != SHT_SYMTAB) continue;
    const auto names_section = section_at(section->sh_link);
    const auto names = names_section ? part_of(bytes, *names_section) : std::nullopt;
    if (!names) return refused;
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= section->sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = read_at<Elf64_Sym>(bytes, section->sh_offset + at);
      if (!symbol) return refused;
      if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || ELF64_ST_BIND(symbol->st_info) != STB_GLOBAL)
        continue;
      auto name = text_at(*names, symbol->st_name);
      if (!name) return refused;
      cubin.functions.push_back(std::move(*name));
    }
  }
  return cubin;
}

Result<void> check_cubin(std::string_view bytes, std::string_view architecture,
                         std::span<const std::string_view> functions) {
  const auto cubin = parse_cubin(bytes);
  if (!cubin) return cubin.error();
  if (cubin->architecture != architecture)
    return Error(Code::kCorrupt, fmt::format("code for {}, not for {}", cubin->architecture, architecture));
  for (const std::string_view name : functions) {
    if (std::find(cubin->functions.begin(), cubin->functions.end(), name) == cubin->functions.end())
      return Error(Code::kCorrupt, fmt::format("the cubin has no function {}", name));
  }
  return {};
}

}  // namespace shardrun::compile
