#include "server/api/token_limits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace nibble::api {
namespace {

void allow(TokenMask mask, TokenId token) { mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32; }
void forbid(TokenMask mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] &= ~(1u << token % 32);
}

bool ends_with(std::span<const TokenId> tokens, std::span<const TokenId> end) {
  return end.size() <= tokens.size() && std::equal(end.rbegin(), end.rend(), tokens.rbegin());
}

// A word is written in two ways: where a text begins, and behind a blank that many vocabularies have in the
// word's first token.
std::vector<std::vector<TokenId>> spellings(const std::string& word, const Tokenizer& tokenizer) {
  const std::string bare = word.substr(word.find_first_not_of(white_space));
  std::vector<std::vector<TokenId>> all{tokenizer.encode(bare)};
  std::vector<TokenId> behind_blank = tokenizer.encode(" " + bare);
  // Where the blank is a token by itself, the first spelling forbids the second too.
  if (!ends_with(behind_blank, all.front())) all.push_back(std::move(behind_blank));
  return all;
}

class LimitedAnswer final : public TokenConstraint {
 public:
  explicit LimitedAnswer(std::shared_ptr<const TokenLimits> limits) : limits_(std::move(limits)) {}

  bool binds() const override { return limits_->binds(answer_); }
  void fill(TokenMask mask) override { limits_->fill(answer_, mask); }
  void accept(TokenId token) override { answer_.push_back(token); }
  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens <= static_cast<int>(answer_.size()), "no more is taken back than was accepted");
    answer_.resize(answer_.size() - static_cast<std::size_t>(tokens));
  }

 private:
  std::shared_ptr<const TokenLimits> limits_;
  std::vector<TokenId> answer_;
};

}  // namespace

std::shared_ptr<const TokenLimits> TokenLimits::make(const Sampling& asked, const Tokenizer& tokenizer,
                                                     TokenId vocabulary, std::span<const TokenId> ends) {
  if (asked.allowed_token_ids.empty() && asked.bad_words.empty()) return nullptr;
  NIBBLE_CHECK(!ends.empty(), "a model has a token that ends its answers");
  auto limits = std::make_shared<TokenLimits>();
  limits->ends_.assign(ends.begin(), ends.end());
  const bool all = asked.allowed_token_ids.empty();
  limits->may_come_.assign(token_mask_words(vocabulary), all ? ~0u : 0u);
  // A bit beyond the vocabulary is no token that could come.
  if (all && vocabulary % 32 != 0) limits->may_come_.back() = (1u << vocabulary % 32) - 1;
  for (const TokenId token : asked.allowed_token_ids) allow(limits->may_come_, token);
  limits->always_ = !all;
  for (const std::string& word : asked.bad_words) {
    for (std::vector<TokenId>& tokens : spellings(word, tokenizer)) {
      // A tokenizer may know more tokens than its model writes.
      if (!tokens.empty() && tokens.back() >= vocabulary) continue;
      if (tokens.size() > 1) {
        limits->sequences_.push_back(std::move(tokens));
      } else if (!tokens.empty()) {
        forbid(limits->may_come_, tokens.front());
        limits->always_ = true;
      }
    }
  }
  return limits;
}

bool TokenLimits::binds(std::span<const TokenId> answer) const {
  return always_ || std::any_of(sequences_.begin(), sequences_.end(), [&](const auto& sequence) {
           return ends_with(answer, std::span(sequence).first(sequence.size() - 1));
         });
}

void TokenLimits::fill(std::span<const TokenId> answer, TokenMask mask) const {
  std::copy(may_come_.begin(), may_come_.end(), mask.begin());
  for (const std::vector<TokenId>& sequence : sequences_) {
    if (ends_with(answer, std::span(sequence).first(sequence.size() - 1))) forbid(mask, sequence.back());
  }
  if (std::any_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word != 0; })) return;
  for (const TokenId end : ends_) allow(mask, end);
}

std::size_t TokenLimits::bytes() const {
  std::size_t bytes = may_come_.size() * sizeof(std::uint32_t);
  for (const std::vector<TokenId>& sequence : sequences_)
    bytes += sizeof(sequence) + sequence.size() * sizeof(TokenId);
  return bytes;
}

std::shared_ptr<TokenConstraint> start(std::shared_ptr<const TokenLimits> limits) {
  return std::make_shared<LimitedAnswer>(std::move(limits));
}

}  // namespace nibble::api
