#include "ops/sample/logit_changes.h"

#include <algorithm>

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

// The tokens that the mask does not have. Most words have all or none.
void leave_out(std::span<const std::uint32_t> mask, std::span<float> logits) {
  for (std::size_t begin = 0; begin < logits.size(); begin += 32) {
    const std::uint32_t word = mask[begin / 32];
    if (word == ~0u) continue;
    const std::span<float> own = logits.subspan(begin, std::min<std::size_t>(32, logits.size() - begin));
    if (word == 0) {
      std::fill(own.begin(), own.end(), masked_logit);
      continue;
    }
    for (std::size_t i = 0; i < own.size(); ++i)
      if ((word >> i & 1) == 0) own[i] = masked_logit;
  }
}

}  // namespace

std::span<const float> change_logits(std::span<const float> logits, const LogitChanges& changes,
                                     LogitChangeRoom& room) {
  room.changed.assign(logits.begin(), logits.end());
  room.counts.resize(logits.size());
  std::vector<float>& changed = room.changed;
  for (const auto& [id, bias] : changes.bias) changed[static_cast<std::size_t>(id)] += bias;
  if (changes.penalizes()) Penalties(changes, room).apply();
  for (float& logit : changed) logit = std::clamp(logit, -largest_changed_logit, largest_changed_logit);
  for (const TokenId id : changes.banned) {
    if (id >= 0 && static_cast<std::size_t>(id) < changed.size())
      changed[static_cast<std::size_t>(id)] = -largest_changed_logit;
  }
  if (!changes.mask.empty()) leave_out(changes.mask, changed);
  return changed;
}

}  // namespace nibble
