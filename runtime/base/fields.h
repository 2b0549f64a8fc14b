// fields(): the members of a struct with their keys, spelled once for writing and for reading it.
//
//   struct Exit { int global_rank = 0; std::optional<int> signal; std::string last_words; };
//
//   void fields(auto& visit, base::Is<Exit> auto& exit) {
//     visit("global_rank", exit.global_rank);
//     visit("signal", exit.signal);
//     visit.later("last_words", exit.last_words);
//   }
//
// It stands in the struct's namespace (not in an unnamed one, where nobody finds it), in the source that writes and reads
// the struct or, where several do, beside the struct. runtime/base/json_fields.h walks it for JSON. A visitor has:
//
//   visit(key, value)               a value: number, text, bool, struct with fields, std::vector, std::map by text. A reader
//                                   requires it. An std::optional is written as null, and read from null and from nothing.
//   visit.later(key, value)         as that; where the key is missing or null, as in files of earlier versions, the value stays.
//   visit.where_known(key, value)   an std::optional that is left out where it is empty.
//   visit.choice(key, value, table) an enum by its words: a table of {name, value}.
//   visit.derived(key, value)       what follows from other members: written for those who read the file, never read.
//   visit.version(newest)           "format_version": written; a higher one is refused.
//   visit.object(key, members)      an object whose members `members(visit)` visits; a reader does not miss it.
//   visit.part(key, value)          an optional struct whose fields stand beside the others; it is there where `key` is.
//
// visit() and where_known() take Digits as a third argument: how a number is written.
//
// Thread rule: types only.
#pragma once

#include <concepts>
#include <type_traits>

namespace shardrun::base {

// `Self` is a `Struct`: to be read into, or a const one to be written.
template <typename Self, typename Struct>
concept Is = std::same_as<std::remove_const_t<Self>, Struct>;

// A word of an enum, for tables of them.
template <typename Enum>
struct Word {
  const char* name;
  Enum value;
};

// How a floating-point number is written; without a count the shortest way that brings back its bits.
struct Digits {
  enum class Kind { kShortest, kSignificant, kDecimals };
  Kind kind = Kind::kShortest;
  int count = 0;
};
constexpr Digits significant(int count) {
  return {Digits::Kind::kSignificant, count};
}
constexpr Digits decimals(int count) {
  return {Digits::Kind::kDecimals, count};
}

}  // namespace shardrun::base
