#include "ops/sample/logit_changes.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"

namespace nibble {
namespace {

// Above any count of an answer's tokens: the token has had its repetition penalty.
constexpr std::uint32_t seen = std::uint32_t{1} << 31;

class Penalties {
 public:
  Penalties(const LogitChanges& changes, LogitChangeRoom& room) : changes_(changes), room_(room) {}

  void apply() {
    for (const TokenId token : changes_.prompt) see(token);
    for (const TokenId token : changes_.answer) {
      see(token);
      ++count(token);
    }
    // The first of a token's places finds its count and takes it.
    for (const TokenId token : changes_.answer) charge(token);
    for (const TokenId token : changes_.prompt) count(token) = 0;
    for (const TokenId token : changes_.answer) count(token) = 0;
  }

 private:
  std::uint32_t& count(TokenId token) { return room_.counts[static_cast<std::size_t>(token)]; }
  float& logit(TokenId token) { return room_.changed[static_cast<std::size_t>(token)]; }

  void see(TokenId token) {
    if ((count(token) & seen) != 0) return;
    count(token) |= seen;
    const float penalty = changes_.repetition_penalty;
    float& value = logit(token);
    value = value > 0 ? value / penalty : value * penalty;
  }

  void charge(TokenId token) {
    const std::uint32_t times = count(token) & ~seen;
    if (times == 0) return;
    float& value = logit(token);
    value -= changes_.frequency_penalty * static_cast<float>(times);
    value -= changes_.presence_penalty;
    count(token) = seen;
  }

  const LogitChanges& changes_;
  LogitChangeRoom& room_;
};

float bounded(float logit) { return std::clamp(logit, -largest_changed_logit, largest_changed_logit); }

constexpr std::size_t word_bits = 32;
constexpr auto each_bit = [] {
  std::array<std::uint32_t, word_bits> bits{};
  for (std::size_t i = 0; i < word_bits; ++i) bits[i] = 1u << i;
  return bits;
}();

// The tokens that the mask does not have. Most words have all or none; what the others do is one compare and
// one choice a logit, which compilers turn into lanes.
void leave_out(std::span<const std::uint32_t> mask, std::span<float> logits) {
  for (std::size_t begin = 0; begin < logits.size(); begin += word_bits) {
    const std::uint32_t word = mask[begin / word_bits];
    if (word == ~0u) continue;
    const std::size_t count = std::min(word_bits, logits.size() - begin);
    float* const own = logits.data() + begin;
    if (word == 0) {
      std::fill_n(own, count, masked_logit);
    } else {
      for (std::size_t i = 0; i < count; ++i) own[i] = (word & each_bit[i]) != 0 ? own[i] : masked_logit;
    }
  }
}

// By additions that compilers turn into lanes: not every x86 has an instruction for it.
std::size_t count_bits(std::span<const std::uint32_t> words) {
  std::uint32_t sum = 0;
  for (std::uint32_t word : words) {
    word -= word >> 1 & 0x55555555;
    word = (word & 0x33333333) + (word >> 2 & 0x33333333);
    word = (word + (word >> 4)) & 0x0f0f0f0f;
    word += word >> 8;
    sum += (word + (word >> 16)) & 0x3f;
  }
  return sum;
}

// Of more tokens than this share, gathering takes about what it saves.
constexpr std::size_t few_share = 2;

}  // namespace

std::span<const float> few_allowed_logits(std::span<const float> logits, std::span<const std::uint32_t> mask,
                                          LogitChangeRoom& room) {
  if (count_bits(mask) * few_share > logits.size()) return {};
  const std::span<float> allowed = room.row(logits.size());
  std::size_t count = 0;
  for (std::size_t word = 0; word < mask.size(); ++word) {
    for (std::uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const std::size_t id = word * word_bits + static_cast<std::size_t>(std::countr_zero(bits));
      if (id < logits.size()) allowed[count++] = bounded(logits[id]);
    }
  }
  return allowed.first(count);
}

TokenId allowed_token(std::span<const std::uint32_t> mask, TokenId place) {
  for (std::size_t word = 0;; ++word) {
    NIBBLE_CHECK(word < mask.size(), "the mask has a token at that place");
    std::uint32_t bits = mask[word];
    const int count = std::popcount(bits);
    if (place >= count) {
      place -= count;
      continue;
    }
    for (; place > 0; --place) bits &= bits - 1;
    return static_cast<TokenId>(word * word_bits) + std::countr_zero(bits);
  }
}

std::span<const float> change_logits(std::span<const float> logits, const LogitChanges& changes,
                                     LogitChangeRoom& room) {
  const std::span<float> changed = room.row(logits.size());
  if (changes.bias.empty() && !changes.penalizes()) {
    std::transform(logits.begin(), logits.end(), changed.begin(), bounded);
  } else {
    std::copy(logits.begin(), logits.end(), changed.begin());
    for (const auto& [id, bias] : changes.bias) changed[static_cast<std::size_t>(id)] += bias;
    room.counts.resize(logits.size());
    if (changes.penalizes()) Penalties(changes, room).apply();
    std::transform(changed.begin(), changed.end(), changed.begin(), bounded);
  }
  for (const TokenId id : changes.banned) {
    if (id >= 0 && static_cast<std::size_t>(id) < changed.size())
      changed[static_cast<std::size_t>(id)] = -largest_changed_logit;
  }
  if (!changes.mask.empty()) leave_out(changes.mask, changed);
  return changed;
}

}  // namespace nibble
