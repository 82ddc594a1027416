#include "server/api/call_constraint.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/api/mask_bits.h"

namespace nibble::api {
namespace {

class Either final : public TokenConstraint {
 public:
  Either(std::unique_ptr<GrammarConstraint> first, std::unique_ptr<GrammarConstraint> second)
      : sides_{Side{std::move(first)}, Side{std::move(second)}} {}

  bool binds() const override { return true; }

  void fill(TokenMask mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    std::vector<std::uint32_t> own(mask.size());
    for (const Side& side : sides_) {
      if (side.accepted != tokens_) continue;
      side.grammar->fill(own);
      for (std::size_t i = 0; i < mask.size(); ++i) mask[i] |= own[i];
    }
  }

  void accept(TokenId token) override {
    bool taken = false;
    for (Side& side : sides_) {
      if (side.accepted != tokens_ || !side.grammar->allows(token)) continue;
      side.grammar->accept(token);
      ++side.accepted;
      taken = true;
    }
    NIBBLE_CHECK(taken, "the token that was chosen was allowed");
    ++tokens_;
  }

  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens <= tokens_, "no more is taken back than was accepted");
    tokens_ -= tokens;
    for (Side& side : sides_) {
      side.grammar->roll_back(std::max(0, side.accepted - tokens_));
      side.accepted = std::min(side.accepted, tokens_);
    }
  }

  // Of the side that is left, once one is out of it.
  int draft(std::span<TokenId> room) override {
    const auto left = [&](const Side& side) { return side.accepted == tokens_; };
    if (std::all_of(std::begin(sides_), std::end(sides_), left)) return 0;
    return std::find_if(std::begin(sides_), std::end(sides_), left)->grammar->draft(room);
  }
  bool may_draft() const override { return true; }

  bool cut() const override {
    return std::all_of(std::begin(sides_), std::end(sides_),
                       [&](const Side& side) { return side.accepted != tokens_ || side.grammar->cut(); });
  }

 private:
  // A side that took fewer tokens than there are is out of it.
  struct Side {
    std::unique_ptr<GrammarConstraint> grammar;
    int accepted = 0;
  };
  Side sides_[2];
  int tokens_ = 0;
};

// How much of a mark the end of a text is, byte by byte (Knuth, Morris and Pratt).
class MarkSearch {
 public:
  explicit MarkSearch(std::string_view mark) : mark_(mark), back_(mark.size(), 0) {
    for (std::size_t i = 1, found = 0; i < mark.size(); ++i) {
      while (found > 0 && mark_[i] != mark_[found]) found = back_[found - 1];
      if (mark_[i] == mark_[found]) ++found;
      back_[i] = found;
    }
  }
  // Of less than the whole mark.
  std::size_t next(std::size_t found, char byte) const {
    while (found > 0 && mark_[found] != byte) found = back_[found - 1];
    return mark_[found] == byte ? found + 1 : 0;
  }
  // Behind the text; stops where the mark is whole, and tells how many bytes that took.
  std::pair<std::size_t, std::size_t> over(std::size_t found, std::string_view text) const {
    for (std::size_t i = 0; i < text.size(); ++i) {
      found = next(found, text[i]);
      if (found == mark_.size()) return {found, i + 1};
    }
    return {found, text.size()};
  }
  std::size_t size() const { return mark_.size(); }

 private:
  std::string mark_;
  std::vector<std::size_t> back_;
};

class FreeUntilCalls final : public TokenConstraint {
 public:
  FreeUntilCalls(const Tokenizer& tokenizer, const BoundCalls& calls)
      : tokenizer_(tokenizer),
        calls_(calls),
        search_(call_marks(calls.form).open),
        open_(tokenizer.control_id(call_marks(calls.form).open)) {}

  bool binds() const override { return call_ || found_ > 0; }

  void fill(TokenMask mask) override {
    if (call_) return call_->fill(mask);
    std::fill(mask.begin(), mask.end(), ~0u);
    if (found_ == 0) return;
    for (TokenId token = 0; token < tokenizer_.vocabulary_size(); ++token) {
      const std::string_view text = text_of(token);
      const auto [found, bytes] = search_.over(found_, text);
      if (found == search_.size() && bytes < text.size()) forbid(mask, token);
    }
  }

  void accept(TokenId token) override {
    said_.push_back(token);
    take(token);
  }

  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens <= static_cast<int>(said_.size()), "no more is taken back than was accepted");
    said_.resize(said_.size() - static_cast<std::size_t>(tokens));
    if (call_ && tokens <= in_call_) {
      call_->roll_back(tokens);
      in_call_ -= tokens;
      return;
    }
    call_.reset();
    found_ = 0;
    for (const TokenId token : said_) take(token);
  }

  int draft(std::span<TokenId> room) override { return call_ ? call_->draft(room) : 0; }
  bool may_draft() const override { return call_ != nullptr; }

  bool cut() const override { return call_ && call_->cut(); }

 private:
  // As the reader of the answer sees it.
  std::string_view text_of(TokenId token) const {
    return tokenizer_.is_hidden(token) ? std::string_view() : tokenizer_.bytes(token);
  }

  void take(TokenId token) {
    if (call_) {
      call_->accept(token);
      ++in_call_;
      if (call_->complete()) call_.reset();
      return;
    }
    found_ = token == open_ ? search_.size() : search_.over(found_, text_of(token)).first;
    if (found_ < search_.size()) return;
    found_ = 0;
    call_ = nibble::start(calls_.grammar, calls_.vocabulary);
    in_call_ = 0;
  }

  Tokenizer tokenizer_;
  BoundCalls calls_;
  MarkSearch search_;
  std::optional<TokenId> open_;  // the mark as a token
  std::size_t found_ = 0;        // bytes of the mark at the text's end
  std::vector<TokenId> said_;
  std::unique_ptr<GrammarConstraint> call_;  // that is being written
  int in_call_ = 0;                          // tokens that it has accepted
};

}  // namespace

std::unique_ptr<TokenConstraint> either(std::unique_ptr<GrammarConstraint> first,
                                        std::unique_ptr<GrammarConstraint> second) {
  return std::make_unique<Either>(std::move(first), std::move(second));
}

std::unique_ptr<TokenConstraint> free_until_calls(const Tokenizer& tokenizer, const BoundCalls& calls) {
  return std::make_unique<FreeUntilCalls>(tokenizer, calls);
}

}  // namespace nibble::api
