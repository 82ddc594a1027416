// A grammar's place in one answer.
#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
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
constexpr std::size_t kMaskBytes = std::size_t{16} << 20;
// Bytes of text for each token that is drafted, at most; places whose only byte is known.
constexpr std::size_t kDraftedBytes = 16, kMostOnlyBytes = std::size_t{1} << 16;
constexpr std::int16_t kNoByte = -1;

// The states of an answer are read when they are first asked for: who begins an answer waits for no other
// one.
class Constraint final : public GrammarConstraint {
 public:
  Constraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> vocabulary)
      : grammar_(std::move(grammar)),
        trie_(std::move(vocabulary)),
        findings_(grammar_->findings(trie_)),
        finder_(*trie_, *findings_) {}
  ~Constraint() override { grammar_->leave(std::move(findings_)); }

  bool binds() const override { return true; }

  void fill(TokenMask mask) override {
    NIBBLE_CHECK(mask.size() == token_mask_words(trie_->size()));
    if (ended_) {
      std::fill(mask.begin(), mask.end(), 0);
      for (const TokenId token : trie_->ends()) set_bit(mask, token);
      return;
    }
    std::unique_lock lock = hold();
    const auto begin = std::chrono::steady_clock::now();
    bound_memory(lock);
    find_mask(mask);
    lock.unlock();
    // No token of this vocabulary leads on from here: the answer ends, cut short, and takes nothing else
    // down.
    if (has_none(mask))
      for (const TokenId token : trie_->ends()) set_bit(mask, token);
    trie_->count_mask(std::chrono::steady_clock::now() - begin);
  }

  bool allows(TokenId token) override {
    const std::unique_lock lock = hold();
    return behind(token) != Matcher::kDead;
  }

  void accept(TokenId token) override {
    const std::unique_lock lock = hold();
    const Matcher::State next = behind(token);
    NIBBLE_CHECK(next != Matcher::kDead, "a token comes that the mask has");
    tokens_.push_back(token);
    states_.push_back(next);
    if (!trie_->is_end(token)) return;
    if (!ended_) cut_ = !matcher().complete(next);
    ended_ = true;
  }

  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens >= 0 && static_cast<std::size_t>(tokens) <= tokens_.size());
    if (tokens == 0) return;
    const std::unique_lock lock = hold();
    tokens_.resize(tokens_.size() - static_cast<std::size_t>(tokens));
    states_.resize(tokens_.size() + 1);
    ended_ = !tokens_.empty() && trie_->is_end(tokens_.back());
  }

  bool complete() override {
    const std::unique_lock lock = hold();
    return matcher().complete(states_.back());
  }

  bool cut() const override { return ended_ && cut_; }

  bool may_draft() const override { return !ended_; }
  // The text that must come whatever is chosen, each time the longest token of it.
  int draft(std::span<TokenId> room) override {
    if (ended_) return 0;
    const std::unique_lock lock = hold();
    std::string text;
    Matcher::State state = states_.back();
    while (text.size() < room.size() * kDraftedBytes) {
      const int byte = only_byte(state);
      if (byte == kNoByte) break;
      text.push_back(static_cast<char>(byte));
      state = matcher().step(state, static_cast<std::uint8_t>(byte));
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
    if (matcher().complete(state)) return kNoByte;
    if (findings_->only_bytes.size() > kMostOnlyBytes) findings_->only_bytes.clear();
    const auto [at, added] = findings_->only_bytes.try_emplace(state, kNoByte);
    if (!added) return at->second;
    Matcher::Steps steps = matcher().steps(state);
    for (int byte = 0; byte < 256; ++byte) {
      if (steps.to(static_cast<std::uint8_t>(byte)) == Matcher::kDead) continue;
      if (at->second != kNoByte) return at->second = kNoByte;
      at->second = static_cast<std::int16_t>(byte);
    }
    return at->second;
  }

  Matcher& matcher() { return findings_->matcher; }

  // Until it ends, no other answer looks at what was found. A state's number is the matcher's: where that has
  // forgotten its states, the answer so far is read again.
  std::unique_lock<std::mutex> hold() {
    std::unique_lock lock(findings_->mutex);
    if (states_.empty() || resets_ != findings_->resets) read_again();
    return lock;
  }

  void read_again() {
    resets_ = findings_->resets;
    states_.assign(1, matcher().start());
    for (const TokenId token : tokens_)
      states_.push_back(trie_->is_end(token) ? states_.back() : finder_.after(states_.back(), token));
  }

  // What was found is full of states: an answer alone with it begins it anew, of several each goes on alone.
  void bound_memory(std::unique_lock<std::mutex>& lock) {
    if (findings_->masks.memory() > kMaskBytes) findings_->forget_masks();
    if (matcher().memory() < kMatcherBytes) return;
    matcher().forget_steps();
    if (matcher().memory() < kMatcherBytes / 2) return;
    if (findings_->answers == 1) {
      findings_->reset();
    } else {
      findings_->full = true;
      lock.unlock();
      grammar_->leave(std::exchange(findings_, grammar_->new_findings(trie_)));
      finder_ = MaskFinder(*trie_, *findings_);
      lock = std::unique_lock(findings_->mutex);
    }
    read_again();
  }

  static bool has_none(TokenMask mask) {
    return std::ranges::all_of(mask, [](std::uint32_t word) { return word == 0; });
  }

  // Of the tokens that lead on.
  void find_mask(TokenMask mask) {
    const Matcher::State place = states_.back();
    const Matcher::State state = matcher().without_copies(place);
    std::ranges::copy(findings_->masks.bits(finder_.mask_at(state)), mask.begin());
    if (matcher().tells_apart() && state != place) finder_.clear_repeated(state, place, mask);
  }

  bool leads_nowhere() {
    std::vector<std::uint32_t> mask(token_mask_words(trie_->size()));
    find_mask(mask);
    return has_none(mask);
  }

  // The place behind a token, the same one where it ends the answer; kDead where it may not come.
  Matcher::State behind(TokenId token) {
    if (token < 0 || token >= trie_->size()) return Matcher::kDead;
    if (trie_->is_end(token)) {
      const bool may_end = ended_ || matcher().complete(states_.back()) || leads_nowhere();
      return may_end ? states_.back() : Matcher::kDead;
    }
    if (ended_ || trie_->bytes(token).empty()) return Matcher::kDead;
    return finder_.after(states_.back(), token);
  }

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::shared_ptr<Findings> findings_;
  MaskFinder finder_;
  std::vector<TokenId> tokens_;
  std::vector<Matcher::State> states_;  // [tokens + 1], or none where nobody has asked
  std::uint64_t resets_ = 0;            // the findings', when the states were read
  bool ended_ = false;
  bool cut_ = false;  // whether the text was incomplete when it ended
};

}  // namespace

std::unique_ptr<GrammarConstraint> start(std::shared_ptr<const Grammar> grammar,
                                         std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return std::make_unique<Constraint>(std::move(grammar),
                                      std::static_pointer_cast<const TokenTrie>(std::move(vocabulary)));
}

}  // namespace nibble
