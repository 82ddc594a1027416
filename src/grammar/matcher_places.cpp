// What a matcher's places have in common: texts without their copies, counts far from their end, texts that
// many places have.
#include <algorithm>
#include <utility>

#include "grammar/matcher.h"
#include "grammar/text_reach.h"

namespace nibble {

std::uint32_t Matcher::copy(std::uint32_t before, std::uint8_t byte) {
  std::uint32_t& place = copy_places_.at(static_cast<std::uint64_t>(before) << 8 | byte);
  if (place == kUnbounded) {
    place = static_cast<std::uint32_t>(copies_.size());
    copies_.push_back({before, byte});
  }
  return place;
}

std::string Matcher::text_of(std::uint32_t copy) const {
  std::string text;
  for (; copy != 0; copy = copies_[copy].before) text.push_back(static_cast<char>(copies_[copy].byte));
  std::reverse(text.begin(), text.end());
  return text;
}

std::string Matcher::copied_text(State state) const {
  for (std::uint32_t i = 0; i < states_[state].count; ++i) {
    const Way& way = ways_[states_[state].begin + i];
    if (copies(way)) return text_of(frames_[way.frame].at);
  }
  return {};
}

std::uint32_t Matcher::copied_texts(State state, std::uint32_t most) {
  std::uint32_t texts = 0;
  for (std::uint32_t i = 0; i < states_[state].count; ++i) {
    const Way way = ways_[states_[state].begin + i];
    if (way.unopened()) {
      texts = std::max(texts, copied_texts(opened_[way.frame], most));
    } else if (is_copied(way)) {
      texts = std::max(texts, languages_.count_texts(way.language, most));
    }
  }
  return texts;
}

bool Matcher::is_copied(const Way& way) const { return frames_[way.frame].symbol == kCopied; }

// The stack of the frame above kEndWithoutCopies.
std::uint32_t Matcher::bare_frame(std::uint32_t frame) {
  std::vector<std::uint32_t> open{frame};
  while (!open.empty()) {
    const std::uint32_t place = open.back();
    const Frame at = frames_[place];
    const auto is_open = [&](std::uint32_t below) {
      const bool unknown = bare_frames_[below] == kUnbounded;
      if (unknown) open.push_back(below);
      return unknown;
    };
    if (bare_frames_[place] != kUnbounded) {
      open.pop_back();
    } else if (is_open(at.next) || (at.symbol == kEither && is_open(at.at))) {
      continue;
    } else if (at.symbol == kEither) {
      std::vector<std::uint32_t> either{bare_frames_[at.at], bare_frames_[at.next]};
      const std::uint32_t made = any_frame(either);
      bare_frames_[place] = made;
    } else {
      const std::uint32_t far = at.symbol == kCopied ? 0 : far_place(at);
      const std::uint32_t made = this->frame(at.symbol, far, bare_frames_[at.next], at.seen);
      bare_frames_[place] = made;
    }
  }
  return bare_frames_[frame];
}

// In an array whose end no token reaches, a place that those far from it have in common.
std::uint32_t Matcher::far_place(const Frame& at) const {
  if (at.symbol == kNoSymbol || symbols_->symbols[at.symbol].kind != Symbol::Kind::array) return at.at;
  const ArrayShape& array = symbols_->arrays[symbols_->symbols[at.symbol].a];
  const std::uint32_t element = at.at & kAtElement, behind = at.at & ~kAtElement;
  if (!is_long(array) || behind == 0) return at.at;
  const auto enough = std::max({array.least, static_cast<std::uint32_t>(array.first.size()), 1u});
  const std::uint32_t count = behind - 1;
  return count > enough && array.most - count > token_elements_ ? (enough + 1) | element : at.at;
}

bool Matcher::is_long(const ArrayShape& array) const {
  return !array.counted && array.most != kUnbounded && array.most > token_elements_;
}

void Matcher::set_token_elements(std::uint32_t elements) {
  const bool changed = token_elements_ != kUnbounded && token_elements_ != elements;
  token_elements_ = elements;
  const auto is_long = [this](const ArrayShape& array) { return this->is_long(array); };
  has_long_arrays_ = std::ranges::any_of(symbols_->arrays, is_long);
  if (changed) reset();
}

Matcher::State Matcher::without_copies(State state) {
  if ((!tells_apart_ && !has_long_arrays_) || state == kDead) return state;
  if (states_[state].without_copies != kUnbounded) return states_[state].without_copies;
  std::vector<Way> ways;
  for (std::uint32_t i = 0; i < states_[state].count; ++i) {
    Way way = ways_[states_[state].begin + i];
    way.frame = bare_frame(way.frame);
    if (way.unopened()) opened(way.frame);
    ways.push_back(way);
  }
  const State made = intern(ways, states_[state].complete);
  states_[made].without_copies = made;
  return states_[state].without_copies = made;
}

std::optional<Matcher::State> Matcher::behind_long(State state, LongCharacters kind) {
  const auto which = static_cast<std::size_t>(kind);
  if (states_[state].behind_long[which] == kUnbounded) {
    const State found = find_behind_long(state, kind);
    states_[state].behind_long[which] = found;
  }
  const State found = states_[state].behind_long[which];
  return found == kDiffers ? std::nullopt : std::optional(found);
}

// A way that comes to its end is left to the steps.
Matcher::State Matcher::find_behind_long(State state, LongCharacters kind) {
  if (states_[state].copying) return kDiffers;
  std::vector<Way> ways;
  for (std::uint32_t i = 0; i < states_[state].count; ++i) {
    const Way way = ways_[states_[state].begin + i];
    if (way.unopened()) return kDiffers;
    const std::optional<Language> next = languages_.behind_long(way.language, kind);
    if (!next || languages_.has_empty_text(*next)) return kDiffers;
    if (*next != kNothing && !languages_.is_empty(*next)) ways.push_back({*next, way.frame});
  }
  return intern(ways, false);
}

std::optional<Matcher::FarFromEnd> Matcher::far_from_end(State state) {
  // Indents count, too, but text_reach.h knows them.
  const auto counts = [&](const Way& way) {
    return languages_.counts(way.language) && !nibble::begins_narrow(languages_, way.language);
  };
  const Place place = states_[state];
  if (std::none_of(ways_.begin() + place.begin, ways_.begin() + place.begin + place.count, counts))
    return std::nullopt;
  std::vector<Way> endless, rounded;
  FarFromEnd far{.endless = state, .rounded = state, .bytes = kUnbounded};
  for (std::uint32_t i = 0; i < place.count; ++i) {
    const Way way = ways_[place.begin + i];
    Way without_end = way, rounder = way;
    if (counts(way)) {
      without_end.language = languages_.recounted(way.language, Languages::Counts::endless);
      rounder.language = languages_.recounted(way.language, Languages::Counts::rounded);
    }
    endless.push_back(without_end);
    rounded.push_back(rounder);
    if (without_end == way) continue;
    const std::uint32_t rest = languages_.longest_rest(without_end.language);
    const std::uint32_t counted = languages_.bytes_counted(rounder.language);
    if (rest >= counted) return std::nullopt;
    far.bytes = std::min(far.bytes, counted - rest);
  }
  if (far.bytes == kUnbounded) return std::nullopt;
  far.endless = intern(endless, place.complete);
  far.rounded = intern(rounded, place.complete);
  return far;
}

// Whether masks find its text apart from the others: it begins narrow, or is one of given ones. Lists that an
// element is left out of have most of their texts' ends in common, which states that know the list do not.
bool Matcher::is_apart(const Way& way) const {
  if (way.unopened()) return false;
  return languages_.is_given_texts(way.language) ||
         (!is_copied(way) && nibble::begins_narrow(languages_, way.language));
}

const Matcher::Split& Matcher::split(State state) {
  if (states_[state].split != kUnbounded) return splits_[states_[state].split];
  Split made;
  std::vector<Way> others;
  for (std::uint32_t i = 0; i < states_[state].count; ++i) {
    const Way way = ways_[states_[state].begin + i];
    if (is_apart(way)) {
      made.ways.push_back({.text = way.language, .frame = way.frame});
    } else {
      others.push_back(way);
    }
  }
  made.rest = intern(others, states_[state].complete);
  states_[state].split = static_cast<std::uint32_t>(splits_.size());
  return splits_.emplace_back(std::move(made));
}

std::optional<Matcher::KeyPlace> Matcher::key_place(State state) {
  if (states_[state].complete) return std::nullopt;
  KeyPlace place;
  std::uint32_t frame_of_others = 0;
  std::vector<Way> keys;
  for (std::uint32_t i = 0; i < states_[state].count; ++i) {
    const Way way = ways_[states_[state].begin + i];
    if (way.unopened() || is_copied(way)) return std::nullopt;
    if (languages_.first_bytes(way.language).count() == 1) {
      keys.push_back(way);
    } else if (place.others == kNothing) {
      place.others = way.language;
      frame_of_others = way.frame;
    } else {
      return std::nullopt;
    }
  }
  if (place.others == kNothing) return std::nullopt;
  for (const char tried : {'z', 'q', 'j', 'Q', 'Z', '7'}) {
    const auto byte = static_cast<std::uint8_t>(tried);
    const Language any = languages_.derivative(place.others, byte);
    const PlainPrefix prefix = languages_.plain_prefix(any);
    if (!prefix.uniform || prefix.length != kUnbounded || languages_.derivative(any, byte) != any) continue;
    place.any = any;
    std::vector<Way> usual{{any, frame_of_others}};
    place.usual = intern(usual, false);
    for (const Way& key : keys) place.declared.push_back({.text = key.language, .frame = key.frame});
    return place;
  }
  return std::nullopt;
}

}  // namespace nibble
