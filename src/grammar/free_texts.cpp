#include "grammar/free_texts.h"

#include <algorithm>
#include <span>

namespace nibble {
namespace {

// Few tokens of plain characters are longer; those are walked to.
constexpr std::uint32_t kMostCharacters = 32;
constexpr std::size_t kMostPlaces = 256;
// States that are made to find out; a longer character needs a dozen for its parts.
constexpr std::size_t kMostStates = 400, kMostStatesOfLong = 200;

using Places = std::vector<Matcher::State>;

void add_once(Places& places, Matcher::State place) {
  if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
}

struct ByteRange {
  unsigned first, last;
};

struct Characters {
  ByteSet bytes;  // that are one
  bool long_ones = false;
};

Places behind(Matcher& matcher, std::span<const Matcher::State> from, ByteRange bytes) {
  Places to;
  for (const Matcher::State each : from) {
    Matcher::Steps steps = matcher.steps(each);
    for (unsigned byte = bytes.first; byte <= bytes.last; ++byte)
      add_once(to, steps.to(static_cast<std::uint8_t>(byte)));
  }
  return to;
}

// Where one character leads; kDead is among them where one may not come.
Places behind_characters(Matcher& matcher, Matcher::State state, const Characters& of) {
  Places to;
  Matcher::Steps steps = matcher.steps(state);
  of.bytes.for_each([&](unsigned byte) { add_once(to, steps.to(static_cast<std::uint8_t>(byte))); });
  if (!of.long_ones) return to;
  for (const Matcher::State each : behind_long_characters(matcher, state)) add_once(to, each);
  return to;
}

}  // namespace

std::vector<Matcher::State> behind_long_characters(Matcher& matcher, Matcher::State state) {
  struct Lead {
    ByteRange first, second;
    int continuations;  // bytes behind the first
  };
  constexpr Lead kLeads[] = {{{0xC2, 0xDF}, {0x80, 0xBF}, 1}, {{0xE0, 0xE0}, {0xA0, 0xBF}, 2},
                             {{0xE1, 0xEC}, {0x80, 0xBF}, 2}, {{0xED, 0xED}, {0x80, 0x9F}, 2},
                             {{0xEE, 0xEF}, {0x80, 0xBF}, 2}, {{0xF0, 0xF0}, {0x90, 0xBF}, 3},
                             {{0xF1, 0xF3}, {0x80, 0xBF}, 3}, {{0xF4, 0xF4}, {0x80, 0x8F}, 3}};
  Places all;
  for (const Lead& lead : kLeads) {
    Places at = behind(matcher, std::span(&state, 1), lead.first);
    at = behind(matcher, at, lead.second);
    for (int i = 1; i < lead.continuations; ++i) at = behind(matcher, at, {0x80, 0xBF});
    for (const Matcher::State each : at) add_once(all, each);
  }
  return all;
}

namespace {

// How many of these characters may come next, whichever they are, as far as that is found out at
// `most_states`.
std::uint32_t free_characters(Matcher& matcher, Matcher::State state, const Characters& of,
                              std::size_t most_states) {
  const std::size_t before = matcher.states();
  Places seen{state}, last{state};
  for (std::uint32_t characters = 0; characters < kMostCharacters; ++characters) {
    Places next;
    for (const Matcher::State each : last) {
      if (matcher.states() - before > most_states || seen.size() > kMostPlaces) return characters;
      for (const Matcher::State place : behind_characters(matcher, each, of)) {
        if (place == Matcher::kDead) return characters;
        if (std::find(seen.begin(), seen.end(), place) != seen.end()) continue;
        seen.push_back(place);
        next.push_back(place);
      }
    }
    if (next.empty()) return kUnbounded;
    last.swap(next);
  }
  return kMostCharacters;
}

}  // namespace

FreeTexts free_texts(Matcher& matcher, const ByteKinds& kinds, Matcher::State state) {
  ByteSet alive;
  Matcher::Steps steps = matcher.steps(state);
  for (unsigned byte = 0; byte < 0x80; ++byte)
    if (steps.to(static_cast<std::uint8_t>(byte)) != Matcher::kDead) alive.add(byte);
  FreeTexts free{.kinds = kinds.within(alive)};
  if ((kinds.letters() & ~free.kinds) != 0) return {};
  Characters of;
  alive.for_each([&](unsigned byte) {
    if (kinds.of(static_cast<std::uint8_t>(byte)) & free.kinds) of.bytes.add(byte);
  });
  free.characters = free_characters(matcher, state, of, kMostStates);
  if (free.characters == 0) return {};
  of.long_ones = true;
  free.with_long = std::min(free.characters, free_characters(matcher, state, of, kMostStatesOfLong));
  return free;
}

}  // namespace nibble
