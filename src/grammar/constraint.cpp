// A grammar's place in one answer, and the masks of tokens.
#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "grammar/grammar_data.h"
#include "grammar/token_trie.h"

namespace nibble {
namespace {

// Beyond it what was found is forgotten and found again.
constexpr std::size_t kMatcherBytes = std::size_t{48} << 20;
constexpr std::size_t kMaskBytes = std::size_t{8} << 20;

void set_bit(TokenMask mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
}

void clear_bit(TokenMask mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] &= ~(1u << token % 32);
}

class Constraint final : public GrammarConstraint {
 public:
  Constraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const GrammarVocabulary> vocabulary)
      : grammar_(std::move(grammar)),
        trie_(std::static_pointer_cast<const TokenTrie>(vocabulary)),
        findings_(grammar_->borrow()),
        matcher_(&findings_->matcher) {
    if (findings_->vocabulary != vocabulary) {
      findings_->masks.clear();
      findings_->vocabulary = std::move(vocabulary);
    }
    states_.push_back(matcher_->start());
  }
  ~Constraint() override { grammar_->give_back(std::move(findings_)); }

  bool binds() const override { return true; }

  void fill(TokenMask mask) override {
    NIBBLE_CHECK(mask.size() == token_mask_words(trie_->size()));
    if (ended_) {
      std::fill(mask.begin(), mask.end(), 0);
      for (const TokenId token : trie_->ends()) set_bit(mask, token);
      return;
    }
    bound_memory();
    const Matcher::State state = states_.back();
    if (const auto known = findings_->masks.find(state); known != findings_->masks.end()) {
      std::copy(known->second.begin(), known->second.end(), mask.begin());
      return;
    }
    std::fill(mask.begin(), mask.end(), 0);
    const bool all_plain = trie_->add_plain(mask, matcher_->plain_prefix(state));
    if (!all_plain && !matcher_->plain_ends(state)) {
      if (mostly_plain(state)) {
        trie_->add_plain(mask, kUnbounded);
        walk<true>(trie_->plain(), state, mask);
      } else {
        walk<false>(trie_->plain(), state, mask);
      }
    }
    if (matcher_->uniform(state)) {
      walk_endings(state, mask);
    } else {
      walk<false>(trie_->other(), state, mask);
    }
    trie_->add_twins(mask);
    if (matcher_->complete(state))
      for (const TokenId token : trie_->ends()) set_bit(mask, token);
    findings_->masks.emplace(state, std::vector<std::uint32_t>(mask.begin(), mask.end()));
  }

  bool allows(TokenId token) override {
    if (token < 0 || token >= trie_->size()) return false;
    if (trie_->is_end(token)) return ended_ || matcher_->complete(states_.back());
    if (ended_ || trie_->bytes(token).empty()) return false;
    return after(states_.back(), token) != Matcher::kDead;
  }

  void accept(TokenId token) override {
    NIBBLE_CHECK(allows(token));
    tokens_.push_back(token);
    if (trie_->is_end(token)) {
      ended_ = true;
      states_.push_back(states_.back());
    } else {
      states_.push_back(after(states_.back(), token));
    }
  }

  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens >= 0 && static_cast<std::size_t>(tokens) <= tokens_.size());
    for (int i = 0; i < tokens; ++i) {
      tokens_.pop_back();
      states_.pop_back();
    }
    ended_ = !tokens_.empty() && trie_->is_end(tokens_.back());
  }

  bool complete() override { return matcher_->complete(states_.back()); }

  std::string forced_bytes(std::size_t limit) override {
    std::string forced;
    Matcher::State state = states_.back();
    while (!ended_ && forced.size() < limit && !matcher_->complete(state)) {
      int only = -1;
      Matcher::State next = Matcher::kDead;
      for (int byte = 0; byte < 256; ++byte) {
        const Matcher::State way = matcher_->step(state, static_cast<std::uint8_t>(byte));
        if (way == Matcher::kDead) continue;
        if (only >= 0) return forced;
        only = byte;
        next = way;
      }
      forced.push_back(static_cast<char>(only));
      state = next;
    }
    return forced;
  }

 private:
  Matcher::State after(Matcher::State state, TokenId token) {
    for (const char byte : trie_->bytes(token)) {
      state = matcher_->step(state, static_cast<std::uint8_t>(byte));
      if (state == Matcher::kDead) break;
    }
    return state;
  }

  // Whether most plain tokens may come next, told from their first bytes: a key that is none of the declared
  // ones.
  bool mostly_plain(Matcher::State state) {
    const std::span<const TrieNode> nodes = trie_->plain();
    std::size_t free = 0;
    for (std::uint32_t i = 0; i < nodes.size(); i = nodes[i].end) {
      const Matcher::State next = matcher_->step(state, nodes[i].byte);
      if (next != Matcher::kDead && matcher_->plain_prefix(next) >= nodes[i].characters)
        free += nodes[i].end - i;
    }
    return free * 2 > nodes.size();
  }

  // Sets the bits of the tokens that may come; or, where all bits are set, clears the others'. Below a place
  // where any plain text may come nothing needs to be tried: in the other trie that is never so.
  template <bool kClears>
  void walk(std::span<const TrieNode> nodes, Matcher::State root, TokenMask mask) {
    std::array<Matcher::State, 257> path;
    path[0] = root;
    for (std::uint32_t i = 0; i < nodes.size();) {
      const TrieNode node = nodes[i];
      const Matcher::State state = matcher_->step(path[node.depth], node.byte);
      const bool free =
          node.characters > 0 && state != Matcher::kDead && matcher_->plain_prefix(state) >= node.characters;
      if (free || state == Matcher::kDead) {
        if (free != kClears)
          for (std::uint32_t each = i; each < node.end; ++each)
            if (nodes[each].token >= 0) (free ? set_bit : clear_bit)(mask, nodes[each].token);
        i = node.end;
        continue;
      }
      if (!kClears && node.token >= 0) set_bit(mask, node.token);
      path[node.depth + 1u] = state;
      ++i;
    }
  }

  // Inside a string a token's plain beginning changes nothing but the length that is left: only what stands
  // behind it is tried, once for all tokens that have it.
  void walk_endings(Matcher::State root, TokenMask mask) {
    const std::span<const TrieNode> nodes = trie_->endings();
    const std::uint32_t left = matcher_->plain_prefix(root);
    std::array<Matcher::State, 257> path;
    path[0] = root;
    for (std::uint32_t i = 0; i < nodes.size();) {
      const TrieNode node = nodes[i];
      const Matcher::State state = matcher_->step(path[node.depth], node.byte);
      if (state == Matcher::kDead) {
        i = node.end;
        continue;
      }
      if (node.token >= 0)
        for (const auto& [token, characters] : trie_->ended(node.token))
          if (characters <= left || after(root, token) != Matcher::kDead) set_bit(mask, token);
      path[node.depth + 1u] = state;
      ++i;
    }
  }

  // A state's number is the matcher's: when that forgets, the answer so far is read again.
  void bound_memory() {
    if (findings_->masks.size() * token_mask_words(trie_->size()) * 4 > kMaskBytes) findings_->masks.clear();
    if (matcher_->memory() < kMatcherBytes) return;
    matcher_->reset();
    findings_->masks.clear();
    states_.assign(1, matcher_->start());
    for (const TokenId token : tokens_)
      states_.push_back(trie_->is_end(token) ? states_.back() : after(states_.back(), token));
  }

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::unique_ptr<Findings> findings_;
  Matcher* matcher_;                    // findings_'s
  std::vector<Matcher::State> states_;  // [tokens + 1]
  std::vector<TokenId> tokens_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<GrammarConstraint> start(std::shared_ptr<const Grammar> grammar,
                                         std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return std::make_unique<Constraint>(std::move(grammar), std::move(vocabulary));
}

}  // namespace nibble
