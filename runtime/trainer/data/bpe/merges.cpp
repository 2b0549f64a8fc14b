#include "runtime/trainer/data/bpe/merges.h"

#include <algorithm>
#include <bit>
#include <functional>

#include <fmt/format.h>

namespace shardrun::data::bpe {
namespace {

// Up to here looking through all neighbours for the first merge is faster than a queue.
constexpr size_t kShortWord = 48;
constexpr uint32_t kNoRank = ~0U;

uint64_t pair_of(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32U) | static_cast<uint32_t>(right);
}

size_t slot_of(uint64_t pair, size_t slots) {
  return static_cast<size_t>((pair * 0x9E3779B97F4A7C15U) >> 20U) & (slots - 1);
}

}  // namespace

Result<Merges> Merges::make(MergeRules rules) {
  Merges made(std::move(rules));
  const MergeRules& kept = made.rules_;
  const auto id_of = [&](const std::string& piece) {
    const auto found = kept.vocabulary.find(piece);
    return found == kept.vocabulary.end() ? -1 : found->second;
  };
  made.table_.resize(std::bit_ceil(std::max<size_t>(16, kept.merges.size() * 2)));
  for (size_t rank = 0; rank < kept.merges.size(); ++rank) {
    const auto& [left, right] = kept.merges[rank];
    const int32_t left_id = id_of(left), right_id = id_of(right), id = id_of(left + right);
    if (left_id < 0 || right_id < 0 || id < 0) {
      return base::Error(
          base::Code::kInvalid,
          fmt::format("merge {} joins {:?} and {:?}, and the vocabulary lacks {}", rank, left, right,
                      left_id < 0    ? "the first"
                      : right_id < 0 ? "the second"
                                     : "what they make"));
    }
    made.insert({pair_of(left_id, right_id), static_cast<uint32_t>(rank), id});
  }
  for (size_t byte = 0; byte < 256; ++byte)
    made.byte_ids_[byte] = id_of(std::string(1, static_cast<char>(byte)));
  // Most words are one token: what the merges make of each piece is asked once, here.
  Scratch scratch;
  Vocabulary single;
  for (const auto& [piece, id] : kept.vocabulary) {
    if (piece.empty()) continue;
    const auto tokens = made.encode(piece, scratch);
    if (kept.whole_words || (tokens.size() == 1 && tokens[0].id == id)) single.emplace(piece, id);
  }
  made.single_ = std::move(single);
  return made;
}

void Merges::insert(Merge merge) {
  size_t slot = slot_of(merge.pair, table_.size());
  while (table_[slot].pair != ~uint64_t{0} && table_[slot].pair != merge.pair)
    slot = (slot + 1) & (table_.size() - 1);
  table_[slot] = merge;  // of two merges of one pair the last counts, as in the tokenizers package
}

const Merges::Merge* Merges::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t slot = slot_of(pair, table_.size()); table_[slot].pair != ~uint64_t{0};
       slot = (slot + 1) & (table_.size() - 1))
    if (table_[slot].pair == pair) return &table_[slot];
  return nullptr;
}

void Merges::split(std::string_view word, std::vector<Symbol>& symbols) const {
  bool last_unknown = false;
  const auto unknown = [&](uint32_t end) {
    if (rules_.unknown < 0) return;
    if (last_unknown && rules_.fuse_unknown) {
      symbols.back().end = end;
    } else {
      symbols.push_back({rules_.unknown, end});
    }
    last_unknown = true;
  };
  for (size_t at = 0; at < word.size();) {
    size_t end = at + 1;
    int32_t id = -1;
    if (rules_.bytes) {
      id = byte_ids_[static_cast<unsigned char>(word[at])];
    } else {
      while (end < word.size() && (static_cast<unsigned char>(word[end]) & 0xC0U) == 0x80U) ++end;
      const auto found = rules_.vocabulary.find(word.substr(at, end - at));
      if (found != rules_.vocabulary.end()) id = found->second;
    }
    const std::string_view character = word.substr(at, end - at);
    const auto end_byte = static_cast<uint32_t>(end);
    at = end;
    if (id >= 0) {
      symbols.push_back({id, end_byte});
      last_unknown = false;
    } else if (!rules_.bytes && std::all_of(character.begin(), character.end(), [&](char c) {
                 return rules_.byte_pieces[static_cast<unsigned char>(c)] >= 0;
               })) {
      for (const char c : character)
        symbols.push_back({rules_.byte_pieces[static_cast<unsigned char>(c)], end_byte});
      last_unknown = false;
    } else {
      unknown(end_byte);
    }
  }
}

void Merges::merge_short(std::vector<Symbol>& symbols) const {
  std::array<uint32_t, kShortWord> ranks;
  std::array<int32_t, kShortWord> made;
  const auto look = [&](size_t i) {
    const Merge* merge = find(symbols[i].id, symbols[i + 1].id);
    ranks[i] = merge == nullptr ? kNoRank : merge->rank;
    made[i] = merge == nullptr ? -1 : merge->id;
  };
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(count - 1));
    if (*best == kNoRank) break;
    const auto at = static_cast<size_t>(best - ranks.begin());
    symbols[at] = {made[at], symbols[at + 1].end};
    --count;
    for (size_t i = at + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = at + 1; i + 1 < count; ++i) {
      ranks[i] = ranks[i + 1];
      made[i] = made[i + 1];
    }
    if (at > 0) look(at - 1);
    if (at + 1 < count) look(at);
  }
  symbols.resize(count);
}

// The queue holds candidates that may be stale: one whose pair is not what stands there any more is passed over.
void Merges::merge_long(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto &before = scratch.before, &after = scratch.after;
  auto& queue = scratch.queue;
  const auto count = static_cast<int32_t>(symbols.size());
  before.resize(symbols.size());
  after.resize(symbols.size());
  queue.clear();
  const auto offer = [&](int32_t left, int32_t right) {
    const Merge* merge = find(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id);
    if (merge == nullptr) return;
    queue.emplace_back((static_cast<uint64_t>(merge->rank) << 32U) | static_cast<uint32_t>(left), merge->id);
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  for (int32_t i = 0; i < count; ++i) {
    before[static_cast<size_t>(i)] = i - 1;
    after[static_cast<size_t>(i)] = i + 1;
    if (i + 1 < count) offer(i, i + 1);
  }
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto [order, id] = queue.back();
    queue.pop_back();
    const auto left = static_cast<size_t>(order & 0xFFFFFFFFU);
    if (symbols[left].id < 0 || after[left] >= count) continue;
    const auto right = static_cast<size_t>(after[left]);
    const Merge* merge = find(symbols[left].id, symbols[right].id);
    if (merge == nullptr || merge->id != id || merge->rank != order >> 32U) continue;
    symbols[left] = {id, symbols[right].end};
    symbols[right].id = -1;
    after[left] = after[right];
    if (after[left] < count) before[static_cast<size_t>(after[left])] = static_cast<int32_t>(left);
    if (before[left] >= 0) offer(before[left], static_cast<int32_t>(left));
    if (after[left] < count) offer(static_cast<int32_t>(left), after[left]);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.id < 0; });
}

std::span<const Merges::Symbol> Merges::encode(std::string_view word, Scratch& scratch) const {
  scratch.symbols.clear();
  if (const auto found = single_.find(word); found != single_.end()) {
    scratch.symbols.push_back({found->second, static_cast<uint32_t>(word.size())});
    return scratch.symbols;
  }
  split(word, scratch.symbols);
  if (scratch.symbols.size() <= kShortWord) {
    merge_short(scratch.symbols);
  } else {
    merge_long(scratch);
  }
  return scratch.symbols;
}

}  // namespace shardrun::data::bpe
