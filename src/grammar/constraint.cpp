// A grammar's place in one answer.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "grammar/grammar_data.h"
#include "grammar/mask_finder.h"
#include "grammar/token_trie.h"

namespace nibble {
namespace {

// Beyond it what was found is forgotten and found again.
constexpr std::size_t kMatcherBytes = std::size_t{48} << 20;
constexpr std::size_t kMaskBytes = std::size_t{8} << 20;
// Bytes of text for each token that is drafted, at most; places whose only byte is known.
constexpr std::size_t kDraftedBytes = 16, kMostOnlyBytes = std::size_t{1} << 16;
constexpr std::int16_t kNoByte = -1;

class Constraint final : public GrammarConstraint {
 public:
  Constraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const GrammarVocabulary> vocabulary)
      : grammar_(std::move(grammar)),
        trie_(std::static_pointer_cast<const TokenTrie>(vocabulary)),
        findings_(grammar_->borrow()),
        matcher_(&findings_->matcher),
        finder_(*trie_, *findings_) {
    if (findings_->vocabulary != vocabulary) {
      findings_->vocabulary = std::move(vocabulary);
      matcher_->set_token_elements(trie_->most_commas() + 1);
      forget();
    }
    states_.push_back(matcher_->start());
  }
  ~Constraint() override { grammar_->give_back(std::move(findings_)); }

  bool binds() const override { return true; }

  void fill(TokenMask mask) override {
    NIBBLE_CHECK(mask.size() == token_mask_words(trie_->size()));
    const auto begin = std::chrono::steady_clock::now();
    if (ended_) {
      std::fill(mask.begin(), mask.end(), 0);
      for (const TokenId token : trie_->ends()) set_bit(mask, token);
      return;
    }
    bound_memory();
    const Matcher::State state = matcher_->without_copies(states_.back());
    std::ranges::copy(findings_->masks.bits(finder_.mask_at(state)), mask.begin());
    if (matcher_->tells_apart() && state != states_.back())
      finder_.clear_repeated(state, states_.back(), mask);
    // No token of this vocabulary leads on from here: the answer ends, cut short, and takes nothing else
    // down.
    leads_nowhere_ = std::ranges::all_of(mask, [](std::uint32_t word) { return word == 0; });
    if (leads_nowhere_)
      for (const TokenId token : trie_->ends()) set_bit(mask, token);
    trie_->count_mask(std::chrono::steady_clock::now() - begin);
  }

  bool allows(TokenId token) override {
    if (token < 0 || token >= trie_->size()) return false;
    if (trie_->is_end(token)) return ended_ || leads_nowhere_ || matcher_->complete(states_.back());
    if (ended_ || trie_->bytes(token).empty()) return false;
    return finder_.after(states_.back(), token) != Matcher::kDead;
  }

  void accept(TokenId token) override {
    NIBBLE_CHECK(allows(token));
    leads_nowhere_ = false;
    tokens_.push_back(token);
    if (trie_->is_end(token)) {
      ended_ = true;
      states_.push_back(states_.back());
    } else {
      states_.push_back(finder_.after(states_.back(), token));
    }
  }

  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens >= 0 && static_cast<std::size_t>(tokens) <= tokens_.size());
    leads_nowhere_ = false;
    for (int i = 0; i < tokens; ++i) {
      tokens_.pop_back();
      states_.pop_back();
    }
    ended_ = !tokens_.empty() && trie_->is_end(tokens_.back());
  }

  bool complete() override { return matcher_->complete(states_.back()); }

  // The end leaves the state as it was.
  bool cut() const override { return ended_ && !matcher_->complete(states_.back()); }

  // The text that must come whatever is chosen, each time the longest token of it.
  int draft(std::span<TokenId> room) override {
    if (ended_ || leads_nowhere_) return 0;
    std::string text;
    Matcher::State state = states_.back();
    while (text.size() < room.size() * kDraftedBytes) {
      const int byte = only_byte(state);
      if (byte == kNoByte) break;
      text.push_back(static_cast<char>(byte));
      state = matcher_->step(state, static_cast<std::uint8_t>(byte));
    }
    std::size_t count = 0;
    for (std::string_view left = text; count < room.size() && !left.empty(); ++count) {
      const std::optional<TokenId> token = trie_->longest_beginning(left);
      if (!token) break;
      room[count] = *token;
      left.remove_prefix(trie_->bytes(*token).size());
    }
    return static_cast<int>(count);
  }

 private:
  // What the text must go on with; kNoByte where it may end or has a choice.
  int only_byte(Matcher::State state) {
    if (matcher_->complete(state)) return kNoByte;
    if (findings_->only_bytes.size() > kMostOnlyBytes) findings_->only_bytes.clear();
    const auto [at, added] = findings_->only_bytes.try_emplace(state, kNoByte);
    if (!added) return at->second;
    Matcher::Steps steps = matcher_->steps(state);
    for (int byte = 0; byte < 256; ++byte) {
      if (steps.to(static_cast<std::uint8_t>(byte)) == Matcher::kDead) continue;
      if (at->second != kNoByte) return at->second = kNoByte;
      at->second = static_cast<std::int16_t>(byte);
    }
    return at->second;
  }

  // A state's number is the matcher's: when that forgets, the answer so far is read again.
  void bound_memory() {
    if (findings_->masks.memory() > kMaskBytes) {
      findings_->masks.clear();
      findings_->may_repeat.clear();
      findings_->too_long.clear();
    }
    if (matcher_->memory() < kMatcherBytes) return;
    matcher_->forget_steps();
    if (matcher_->memory() < kMatcherBytes / 2) return;
    matcher_->reset();
    forget();
    states_.assign(1, matcher_->start());
    for (const TokenId token : tokens_)
      states_.push_back(trie_->is_end(token) ? states_.back() : finder_.after(states_.back(), token));
  }

  // What is known of the matcher's states.
  void forget() {
    findings_->masks.clear();
    findings_->may_repeat.clear();
    findings_->too_long.clear();
    findings_->loops.clear();
    findings_->only_bytes.clear();
    findings_->reaches.clear();
  }

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::unique_ptr<Findings> findings_;
  Matcher* matcher_;                    // findings_'s
  std::vector<Matcher::State> states_;  // [tokens + 1]
  std::vector<TokenId> tokens_;
  MaskFinder finder_;
  bool ended_ = false;
  bool leads_nowhere_ = false;  // whether the mask that was found last had no token
};

}  // namespace

std::unique_ptr<GrammarConstraint> start(std::shared_ptr<const Grammar> grammar,
                                         std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return std::make_unique<Constraint>(std::move(grammar), std::move(vocabulary));
}

}  // namespace nibble
