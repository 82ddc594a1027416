#include "grammar/mask_recipe.h"

#include <algorithm>

namespace nibble {
namespace {

// A longer recipe is hardly ever found twice, and takes more memory than its mask.
constexpr std::size_t kMostSteps = 4096;

std::uint64_t hash_of(std::span<const std::uint64_t> steps) {
  std::uint64_t hash = steps.size();
  for (const std::uint64_t step : steps) {
    hash = (hash ^ step) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

void MaskRecipe::plain(std::uint32_t characters) {
  add(Step::plain, 0, std::min(characters, tokens_.longest()));
}

void MaskRecipe::kinds(ByteKindMask kinds, std::uint32_t characters) {
  add(Step::kinds, kinds, std::min(characters, tokens_.longest()));
}

void MaskRecipe::ended(TokenId group, std::uint32_t characters) {
  add(Step::ended, std::min(characters, tokens_.longest_ended(group)), static_cast<std::uint32_t>(group));
}

std::optional<MaskId> StoredMasks::find(Place place) const {
  const auto known = places_.find(place);
  if (known == places_.end()) return std::nullopt;
  return known->second;
}

MaskId StoredMasks::add(Place place, const MaskRecipe& recipe) {
  const std::span<const std::uint64_t> steps = recipe.steps();
  if (steps.size() == 1 && steps.front() >> 56 == static_cast<std::uint64_t>(MaskRecipe::Step::like)) {
    const auto like = static_cast<MaskId>(steps.front());
    places_.emplace(place, like);
    return like;
  }
  const bool compared = steps.size() <= kMostSteps;
  const std::uint64_t hash = compared ? hash_of(steps) : 0;
  if (compared) {
    const auto [begin, end] = recipes_.equal_range(hash);
    for (auto each = begin; each != end; ++each) {
      if (!std::ranges::equal(masks_[each->second].recipe, steps)) continue;
      places_.emplace(place, each->second);
      return each->second;
    }
  }
  const auto made = static_cast<MaskId>(masks_.size());
  Stored stored{.recipe = {}, .bits = follow(recipe)};
  memory_ += stored.bits.size() * sizeof(std::uint32_t);
  if (compared) {
    stored.recipe.assign(steps.begin(), steps.end());
    memory_ += steps.size_bytes();
    recipes_.emplace(hash, made);
  }
  masks_.push_back(std::move(stored));
  places_.emplace(place, made);
  return made;
}

std::vector<std::uint32_t> StoredMasks::follow(const MaskRecipe& recipe) const {
  using Step = MaskRecipe::Step;
  const TokenTrie& tokens = recipe.tokens();
  std::vector<std::uint32_t> mask(token_mask_words(tokens.size()));
  const auto below = [&](std::uint32_t trie, std::uint32_t node) {
    const Trie& of = recipe.trie(trie);
    return of.below(of.nodes[node]);
  };
  for (const std::uint64_t each : recipe.steps()) {
    const auto small = static_cast<std::uint32_t>(each >> 32 & 0xFFFFFF);
    const auto word = static_cast<std::uint32_t>(each);
    switch (static_cast<Step>(each >> 56)) {
      case Step::like: mask = masks_[word].bits; break;
      case Step::plain: tokens.add_plain(mask, word); break;
      case Step::kinds: tokens.add_kinds(mask, static_cast<ByteKindMask>(small), word); break;
      case Step::token: set_bit(mask, static_cast<TokenId>(word)); break;
      case Step::without: clear_bit(mask, static_cast<TokenId>(word)); break;
      case Step::below:
        for (const TokenId token : below(small, word)) set_bit(mask, token);
        break;
      case Step::without_below:
        for (const TokenId token : below(small, word)) clear_bit(mask, token);
        break;
      case Step::ended:
        for (const auto& [token, characters] : tokens.ended(static_cast<TokenId>(word)))
          if (characters <= small) set_bit(mask, token);
        break;
      case Step::ends:
        for (const TokenId token : tokens.ends()) set_bit(mask, token);
        break;
    }
  }
  tokens.set_twins(mask);
  return mask;
}

void StoredMasks::clear() {
  masks_.clear();
  places_.clear();
  recipes_.clear();
  memory_ = 0;
}

}  // namespace nibble
