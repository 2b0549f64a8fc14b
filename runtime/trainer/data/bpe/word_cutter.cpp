#include "runtime/trainer/data/bpe/word_cutter.h"

#include <optional>

namespace shardrun::data::bpe {
namespace {

struct Piece {
  Range range;
  bool matched = false;
};

// Joins the pieces of one text as a behaviour says, and hands each on when nothing more can be joined to it.
class Joiner {
 public:
  Joiner(Behaviour behaviour, const WordCutter::Visit& visit) : behaviour_(behaviour), visit_(visit) {}

  Result<void> add(Piece piece) {
    if (piece.range.begin == piece.range.end || (behaviour_ == Behaviour::kRemoved && piece.matched))
      return {};
    if (held_ && joins(*held_, piece)) {
      held_ = Piece{{held_->range.begin, piece.range.end}, piece.matched};
      return {};
    }
    RETURN_IF_ERROR(finish());
    held_ = piece;
    return {};
  }

  Result<void> finish() {
    if (!held_) return {};
    const Range range = held_->range;
    held_.reset();
    return visit_(range);
  }

 private:
  // `before.matched` is that of the last piece joined to it: of two matches in a row only one joins its neighbour.
  bool joins(const Piece& before, const Piece& piece) const {
    switch (behaviour_) {
      case Behaviour::kMergedWithPrevious:
        return piece.matched && !before.matched;
      case Behaviour::kMergedWithNext:
        return before.matched && !piece.matched;
      case Behaviour::kContiguous:
        return before.matched == piece.matched;
      default:
        return false;
    }
  }

  Behaviour behaviour_;
  const WordCutter::Visit& visit_;
  std::optional<Piece> held_;
};

}  // namespace

Result<void> WordCutter::cut_by(size_t split, std::string_view text, Range range,
                                SplitPattern::Scratch& scratch, const Visit& visit) const {
  if (split == splits_.size()) return visit(range);
  const Split& by = splits_[split];
  const Visit next = [&](Range word) {
    return cut_by(split + 1, text, {range.begin + word.begin, range.begin + word.end}, scratch, visit);
  };
  Joiner joiner(by.behaviour, next);
  const std::string_view whole = text.substr(range.begin, range.end - range.begin);
  size_t at = 0;
  for (size_t from = 0; from <= whole.size();) {
    ASSIGN_OR_RETURN(const auto match, by.pattern.find(whole, from, scratch));
    if (!match) break;
    if (match->begin == match->end) {  // matched nothing: look again behind this character
      from = match->end + 1;
      while (from < whole.size() && (static_cast<unsigned char>(whole[from]) & 0xC0U) == 0x80U) ++from;
      continue;
    }
    RETURN_IF_ERROR(joiner.add({{at, match->begin}, by.inverted}));
    RETURN_IF_ERROR(joiner.add({*match, !by.inverted}));
    from = at = match->end;
  }
  RETURN_IF_ERROR(joiner.add({{at, whole.size()}, by.inverted}));
  return joiner.finish();
}

Result<void> WordCutter::cut(std::string_view text, SplitPattern::Scratch& scratch,
                             const Visit& visit) const {
  if (text.empty()) return {};
  return cut_by(0, text, {0, text.size()}, scratch, visit);
}

}  // namespace shardrun::data::bpe
