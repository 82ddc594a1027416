#include "grammar/free_texts.h"

#include <algorithm>
#include <span>

namespace nibble {
namespace {

// Few tokens of plain characters are longer; those are walked to.
constexpr std::uint32_t kMostCharacters = 32;
// Fewer than most tokens have.
constexpr std::uint32_t kFewCharacters = 8;
constexpr std::size_t kMostPlaces = 256;
// States that are made to find out; a longer character needs a dozen for its parts.
constexpr std::size_t kMostStates = 400, kMostStatesOfLong = 200;

using Places = std::vector<Matcher::State>;

void add_once(Places& places, Matcher::State place) {
  if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
}

struct Characters {
  ByteSet bytes;  // that are one
  bool long_ones = false;
};

Characters characters_of(const ByteKinds& kinds, ByteKindMask of) {
  Characters made;
  for (unsigned byte = 0; byte < 0x80; ++byte)
    if (kinds.of(static_cast<std::uint8_t>(byte)) & of) made.bytes.add(byte);
  return made;
}

Places behind(Matcher& matcher, std::span<const Matcher::State> from, ByteRange bytes) {
  Places to;
  for (const Matcher::State each : from) {
    Matcher::Steps steps = matcher.steps(each);
    for (unsigned byte = bytes.first; byte <= bytes.last; ++byte)
      add_once(to, steps.to(static_cast<std::uint8_t>(byte)));
  }
  return to;
}

// Where longer characters lead, each place once; kDead is among them where one may not come.
void add_behind(Matcher& matcher, Matcher::State state, LongCharacters kind, Places& all) {
  if (const auto one = matcher.behind_long(state, kind)) return add_once(all, *one);
  for (const LongRange& range : long_ranges(kind)) {
    Places at{state};
    for (std::size_t i = 0; i < range.size; ++i) at = behind(matcher, at, range.bytes[i]);
    for (const Matcher::State each : at) add_once(all, each);
  }
}

// Where one character leads; kDead is among them where one may not come.
Places behind_characters(Matcher& matcher, Matcher::State state, const Characters& of) {
  Places to;
  Matcher::Steps steps = matcher.steps(state);
  of.bytes.for_each([&](unsigned byte) { add_once(to, steps.to(static_cast<std::uint8_t>(byte))); });
  if (!of.long_ones) return to;
  add_behind(matcher, state, LongCharacters::others, to);
  add_behind(matcher, state, LongCharacters::blanks, to);
  return to;
}

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
  FreeTexts free{.kinds = kinds.within(alive), .at = state};
  if ((kinds.letters() & ~free.kinds) != 0) return {};
  Characters of = characters_of(kinds, free.kinds);
  free.characters = free_characters(matcher, state, of, kMostStates);
  // A kind of which two may not come one behind the other, as a point, is not free.
  if (free.characters < kFewCharacters) {
    const std::uint32_t with_all = free.characters;
    const ByteKindMask all = free.kinds;
    free.kinds = kinds.letters();
    of = characters_of(kinds, free.kinds);
    free.characters = free_characters(matcher, state, of, kMostStates);
    for (unsigned kind = 1; kind <= all && free.characters >= kFewCharacters; kind <<= 1) {
      if ((kind & all) == 0 || (kind & free.kinds) != 0) continue;
      const Characters more = characters_of(kinds, static_cast<ByteKindMask>(free.kinds | kind));
      const std::uint32_t characters = free_characters(matcher, state, more, kMostStates);
      if (characters < std::min(free.characters, kMostCharacters / 2)) continue;
      free.kinds = static_cast<ByteKindMask>(free.kinds | kind);
      free.characters = characters;
      of = more;
    }
    if (free.characters < kFewCharacters) {
      free.kinds = all;
      free.characters = with_all;
      of = characters_of(kinds, all);
    }
  }
  if (free.characters == 0) return {};
  of.long_ones = true;
  free.long_kinds = ByteKinds::long_ones();
  free.with_long = std::min(free.characters, free_characters(matcher, state, of, kMostStatesOfLong));
  return free;
}

ByteKindMask kinds_between(Matcher& matcher, const ByteKinds& kinds, Matcher::State from, Matcher::State to) {
  ByteSet bytes;
  Matcher::Steps steps = matcher.steps(from);
  for (unsigned byte = 0; byte < 0x80; ++byte)
    if (steps.to(static_cast<std::uint8_t>(byte)) == to) bytes.add(byte);
  ByteKindMask between = kinds.within(bytes);
  for (const LongCharacters kind : {LongCharacters::others, LongCharacters::blanks}) {
    if (const auto one = matcher.behind_long(from, kind)) {
      if (*one == to) between |= ByteKinds::of(kind);
      continue;
    }
    // One of them tells most places apart.
    Matcher::State behind_one = from;
    const LongRange& range = long_ranges(kind).front();
    for (std::size_t i = 0; i < range.size; ++i)
      behind_one = matcher.step(behind_one, static_cast<std::uint8_t>(range.bytes[i].first));
    if (behind_one != to) continue;
    Places behind;
    add_behind(matcher, from, kind, behind);
    if (behind == Places{to}) between |= ByteKinds::of(kind);
  }
  return between;
}

}  // namespace nibble
