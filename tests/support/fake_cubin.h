// Makes a file laid out like a cubin, with a symbol for each function and no code, for tests without a GPU compiler.
//
// Thread rule: pure.
#pragma once

#include <elf.h>

#include <cstring>
#include <string>
#include <vector>

namespace shardrun::tests {

// `architecture` is 90 for sm_90. `new_layout` is the one that CUDA 13 writes.
inline std::string fake_cubin(unsigned architecture, const std::vector<std::string>& functions,
                              bool new_layout = true) {
  std::string names(1, '\0');
  std::vector<Elf64_Sym> symbols(1);
  for (const std::string& function : functions) {
    Elf64_Sym symbol{};
    symbol.st_name = static_cast<Elf64_Word>(names.size());
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbols.push_back(symbol);
    names += function + '\0';
  }
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_ABIVERSION] = new_layout ? 8 : 7;
  header.e_machine = 190;
  header.e_flags = new_layout ? architecture << 8 | 0x06000004 : architecture << 16 | 0x500 | architecture;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shoff = sizeof header;
  Elf64_Shdr sections[3] = {};
  sections[1].sh_type = SHT_SYMTAB;
  sections[1].sh_offset = sizeof header + sizeof sections;
  sections[1].sh_size = symbols.size() * sizeof(Elf64_Sym);
  sections[1].sh_link = 2;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = sections[1].sh_offset + sections[1].sh_size;
  sections[2].sh_size = names.size();
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(reinterpret_cast<const char*>(sections), sizeof sections);
  bytes.append(reinterpret_cast<const char*>(symbols.data()), sections[1].sh_size);
  return bytes + names;
}

// Returns the names of a translation unit's kernels (kernels/cuda/specialised.h).
inline std::vector<std::string> kernels_in(const std::string& source) {
  std::vector<std::string> names;
  const std::string before = "void shardrun_";
  for (size_t at = source.find(before); at != source.npos; at = source.find(before, at + 1)) {
    const size_t begin = at + 5;
    names.push_back(source.substr(begin, source.find('(', begin) - begin));
  }
  return names;
}

}  // namespace shardrun::tests
