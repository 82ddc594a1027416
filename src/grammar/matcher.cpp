#include "grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "grammar/text_reach.h"

namespace nibble {
namespace {

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 32;
  value *= 0x9E3779B97F4A7C15ull;
  return value ^ value >> 29;
}

// Frames that open into fewer ways are opened at once: most of them are one text.
constexpr std::uint32_t kFewWays = 5;
constexpr std::uint32_t kManyWays = 40;

// How far an array with counted elements is, likewise.
struct CountedPlace {
  std::uint32_t count = 0, found = 0;  // no more than matter
  static CountedPlace of(std::uint32_t at) { return {(at - 1) & 0x7FFF, (at - 1) >> 15}; }
  std::uint32_t pack() const { return (found << 15 | count) + 1; }
};

// How far an object is: 0 before its brace, else one more than this.
struct ObjectPlace {
  std::uint32_t member = 0;  // the first that may still come
  std::uint32_t count = 0;   // members so far, no more than matter
  bool at_key = false;       // a key comes next; else a comma, the first key's white space, or the end
  bool found = false;        // one that is asked for has come
  static ObjectPlace of(std::uint32_t at) {
    return {(at - 1) >> 17, (at - 1) >> 1 & 0x7FFF, ((at - 1) & 1) != 0, ((at - 1) >> 16 & 1) != 0};
  }
  std::uint32_t pack() const { return (member << 17 | found << 16 | count << 1 | at_key) + 1; }
};

// So many members matter.
std::uint32_t counted_members(const ObjectShape& object) {
  return object.most != kUnbounded ? object.most : std::max(object.least, 1u);
}

}  // namespace

Matcher::Matcher(std::shared_ptr<const Symbols> symbols, std::shared_ptr<const std::vector<bool>> usable)
    : symbols_(std::move(symbols)), usable_(std::move(usable)) {
  const auto distinct = [](const auto& shape) { return shape.distinct; };
  const auto asks = [](const ObjectShape& object) { return object.asked.has_value(); };
  tells_apart_ = std::ranges::any_of(symbols_->objects, distinct) ||
                 std::ranges::any_of(symbols_->arrays, distinct) ||
                 std::ranges::any_of(symbols_->objects, asks);
  reset();
}

void Matcher::reset() {
  languages_ = symbols_->languages;
  frames_ = {{kNoSymbol, kTextEnd, 0, kNothing}, {kNoSymbol, kEndWithoutCopies, 0, kNothing}};
  bare_ = {false, true};
  bare_frames_ = {kEndWithoutCopies, kEndWithoutCopies};
  copies_.assign(1, Copy{});
  copy_places_ = {};
  entered_.assign(2, 0);
  opened_.assign(2, kUnbounded);
  frame_table_.assign(256, kUnbounded);
  state_table_.assign(256, kUnbounded);
  ways_.clear();
  states_.assign(1, Place{});
  state_hashes_.assign(1, 0);
  rows_used_ = 0;
  crossings_.clear();
  splits_.clear();
  states_[kDead].row = make_row({});
  opening_ = 0;
  start_ = (*usable_)[symbols_->root] ? opened(frame(symbols_->root, 0, 0)) : kDead;
}

void Matcher::forget_steps() {
  rows_used_ = 0;
  crossings_.clear();
  splits_.clear();
  for (Place& place : states_) {
    place.row = nullptr;
    place.crossing = place.split = kUnbounded;
  }
  states_[kDead].row = make_row({});
}

// Of a state that goes on with these bytes. To give thousands of rows back takes milliseconds, so those that
// were forgotten are used again.
Matcher::Row* Matcher::make_row(const ByteSet& first) {
  if (rows_used_ == rows_.size()) rows_.emplace_back();
  Row& row = rows_[rows_used_++];
  const bool few = first.count() < 128;
  row.fill(few ? kDead : kUnbounded);
  (few ? first : ~first).for_each([&](unsigned byte) { row[byte] = few ? kUnbounded : kDead; });
  return &row;
}

std::size_t Matcher::memory() const {
  return rows_used_ * sizeof(Row) + splits_.size() * (sizeof(Split) + sizeof(NarrowWay)) +
         crossings_.size() * 2 * sizeof(Crossing) + states_.capacity() * sizeof(Place) +
         ways_.capacity() * sizeof(Way) + frames_.capacity() * (sizeof(Frame) + 24) + copies_.size() * 48 +
         languages_.memory();
}

std::uint32_t Matcher::frame(SymbolId symbol, std::uint32_t at, std::uint32_t next, Language seen) {
  const Frame wanted{.symbol = symbol, .at = at, .next = next, .seen = seen};
  const auto hash = [](const Frame& f) {
    return mix(mix(static_cast<std::uint64_t>(f.symbol) << 32 | f.at) ^
               (static_cast<std::uint64_t>(f.seen) << 32 | f.next));
  };
  const std::size_t last = frame_table_.size() - 1;
  std::size_t i = hash(wanted) & last;
  for (; frame_table_[i] != kUnbounded; i = (i + 1) & last)
    if (frames_[frame_table_[i]] == wanted) return frame_table_[i];
  const auto made = static_cast<std::uint32_t>(frames_.size());
  frame_table_[i] = made;
  frames_.push_back(wanted);
  entered_.push_back(0);
  opened_.push_back(kUnbounded);
  bare_.push_back(bare_[next]);
  bare_frames_.push_back(bare_[next] ? made : kUnbounded);
  if (frames_.size() * 2 > frame_table_.size()) {
    frame_table_.assign(frame_table_.size() * 2, kUnbounded);
    for (std::uint32_t each = kEndWithoutCopies + 1; each < frames_.size(); ++each) {
      std::size_t k = hash(frames_[each]) & (frame_table_.size() - 1);
      while (frame_table_[k] != kUnbounded) k = (k + 1) & (frame_table_.size() - 1);
      frame_table_[k] = each;
    }
  }
  return made;
}

// One frame for all of them, which are left in no order.
std::uint32_t Matcher::any_frame(std::vector<std::uint32_t>& of) {
  for (std::size_t i = 0; i < of.size(); ++i)
    while (frames_[of[i]].symbol == kEither) {
      const Frame either = frames_[of[i]];
      of[i] = either.at;
      of.push_back(either.next);
      std::swap(of[i], of.back());
    }
  std::sort(of.begin(), of.end());
  of.erase(std::unique(of.begin(), of.end()), of.end());
  std::uint32_t made = of.back();
  for (std::size_t i = of.size() - 1; i-- > 0;) made = frame(kEither, of[i], made);
  return made;
}

// Ways of one language become one, whatever stands behind them: a text is read in one go until it ends.
// `ways` are sorted.
void Matcher::join_alike(std::vector<Way>& ways) {
  const auto joins = [&](const Way& way, const Way& other) {
    return way.language == other.language && !way.unopened() && !is_copied(way) && !is_copied(other);
  };
  if (std::adjacent_find(ways.begin(), ways.end(), joins) == ways.end()) return;
  std::size_t kept = 0;
  std::vector<std::uint32_t> behind;
  for (std::size_t i = 0; i < ways.size();) {
    std::size_t end = i + 1;
    while (end < ways.size() && joins(ways[i], ways[end])) ++end;
    Way way = ways[i];
    if (end > i + 1) {
      behind.clear();
      for (; i < end; ++i) behind.push_back(ways[i].frame);
      way.frame = any_frame(behind);
    }
    ways[kept++] = way;
    i = end;
  }
  ways.resize(kept);
}

void Matcher::add(Language language, std::uint32_t next) {
  if (language == kNothing) return;
  if (language != kEmptyText) found_.push_back({language, next});
  if (languages_.has_empty_text(language)) enter(next);
}

void Matcher::enter(std::uint32_t frame) {
  if (entered_[frame] == opening_) return;
  entered_[frame] = opening_;
  open_.push_back(frame);
}

Matcher::State Matcher::opened(std::uint32_t frame) {
  if (opened_[frame] != kUnbounded) return opened_[frame];
  ++opening_;
  found_.clear();
  found_end_ = false;
  enter(frame);
  open_frames();
  return opened_[frame] = intern(found_, found_end_);
}

void Matcher::open_frames() {
  while (!open_.empty()) {
    const std::uint32_t place = open_.back();
    const Frame at = frames_[place];
    open_.pop_back();
    if (at.symbol == kNoSymbol) {
      found_end_ = true;
      continue;
    }
    if (at.symbol == kEither) {
      enter(at.at);
      enter(at.next);
      continue;
    }
    if (at.symbol == kCopied) {
      enter_copied(at);
      continue;
    }
    const Symbol& symbol = symbols_->symbols[at.symbol];
    const auto usable = [&](SymbolId each) { return (*usable_)[each]; };
    switch (symbol.kind) {
      case Symbol::Kind::text: add(symbol.a, at.next); break;
      case Symbol::Kind::sequence: {
        const std::uint32_t rest = at.at + 1 < symbol.b ? frame(at.symbol, at.at + 1, at.next) : at.next;
        enter(frame(symbols_->parts[symbol.a + at.at], 0, rest));
        break;
      }
      case Symbol::Kind::choice:
        for (std::uint32_t i = 0; i < symbol.b; ++i) {
          const SymbolId part = symbols_->parts[symbol.a + i];
          if (usable(part)) enter(frame(part, 0, at.next));
        }
        break;
      case Symbol::Kind::repeat: {
        if (at.at >= symbol.b) enter(at.next);
        if ((symbol.c != kUnbounded && at.at >= symbol.c) || !usable(symbol.a)) break;
        const std::uint32_t times = symbol.c == kUnbounded ? std::min(at.at + 1, symbol.b) : at.at + 1;
        enter(frame(symbol.a, 0, frame(at.symbol, times, at.next)));
        break;
      }
      case Symbol::Kind::object: enter_object(at, place); break;
      case Symbol::Kind::array: enter_array(at, place); break;
      case Symbol::Kind::undefined: break;
    }
  }
}

// The key or the element has been read: what comes behind it knows it.
void Matcher::enter_copied(const Frame& copied) {
  const Frame before = frames_[copied.next];
  const Symbol& symbol = symbols_->symbols[before.symbol];
  const bool array = symbol.kind == Symbol::Kind::array;
  Language seen = before.seen;
  if (!bare_[copied.next]) {
    seen = languages_.any_of({seen, languages_.literal(text_of(copied.at))});
  } else if (!array) {
    // Some name, so that they are counted; no text has the byte.
    seen = languages_.any_of({seen, languages_.literal(std::string(languages_.choices(seen) + 1, '\xFF'))});
  }
  if (array) return enter(frame(before.symbol, before.at & ~kAtElement, before.next, seen));
  const ObjectShape& object = symbols_->objects[symbol.a];
  ObjectPlace behind = ObjectPlace::of(before.at);
  behind.at_key = false;
  behind.count = std::min(behind.count + 1, counted_members(object));
  behind.found = copied.seen >= object.others.size();
  const SymbolId value = behind.found ? object.asked->others[copied.seen - object.others.size()].value
                                      : object.others[copied.seen].value;
  add(object.colon, frame(value, 0, frame(before.symbol, behind.pack(), before.next, seen)));
}

// How many more names the others can have: kUnbounded where nothing asks.
std::uint32_t Matcher::others_left(const ObjectShape& object, const Frame& at) const {
  std::uint64_t names = 0;
  for (const auto& other : object.others)
    if ((*usable_)[other.value]) names += other.names;
  if (names >= kUnbounded) return kUnbounded;
  return static_cast<std::uint32_t>(names - std::min<std::uint64_t>(names, languages_.choices(at.seen)));
}

void Matcher::enter_object(const Frame& at, std::uint32_t place_of_frame) {
  const ObjectShape& object = symbols_->objects[symbols_->symbols[at.symbol].a];
  if (at.at == 0) {
    add(object.open, frame(at.symbol, ObjectPlace{}.pack(), at.next));
    return;
  }
  const ObjectPlace place = ObjectPlace::of(at.at);
  const auto members = static_cast<std::uint32_t>(object.members.size());
  const std::uint32_t others = others_left(object, at);
  std::uint32_t declared = 0, required = 0;  // of the members that may still come
  const bool asks = object.asked && !place.found;
  std::uint32_t asked = 0, asked_required = 0;  // of those the ones that may be what is asked for
  const auto may_be_asked = [&](std::uint32_t i) {
    return asks && object.asked->values[i] != kNoSymbol && (*usable_)[object.asked->values[i]];
  };
  for (std::uint32_t i = place.member; i < members; ++i) {
    declared += (*usable_)[object.members[i].value];
    required += object.members[i].required;
    asked += may_be_asked(i);
    asked_required += may_be_asked(i) && object.members[i].required;
  }
  const bool asked_other = asks && std::ranges::any_of(object.asked->others, [&](const auto& other) {
                             return (*usable_)[other.value];
                           });
  const bool room = object.most == kUnbounded || place.count < object.most;
  if (!place.at_key) {
    if (required == 0 && !asks && place.count >= object.least) add(object.close, at.next);
    if (!room || (declared == 0 && others == 0) || (asks && asked == 0 && !asked_other)) return;
    if (required == 0 && others == 0 && place.count + declared < object.least) return;
    ObjectPlace key = place;
    key.at_key = true;
    add(place.count == 0 ? object.before_first : object.comma,
        frame(at.symbol, key.pack(), at.next, at.seen));
    return;
  }
  const std::uint32_t count = std::min(place.count + 1, counted_members(object));
  // An optional member leaves room for those that must come.
  const auto fits = [&](std::uint32_t still_required) {
    return object.most == kUnbounded || place.count + 1 + still_required <= object.most;
  };
  // So does one that is not asked for, as long as none has come.
  const auto fits_unasked = [&](std::uint32_t still_required) {
    return !asks || ((asked > 0 || asked_other) && fits(still_required + (asked_required == 0)));
  };
  const auto enough = [&](std::uint32_t behind) {
    return std::uint64_t{place.count} + 1 + behind + others >= object.least;
  };
  const auto member = [&](Language key, SymbolId value, ObjectPlace behind) {
    behind.count = count;
    add(languages_.concat(key, object.colon),
        frame(value, 0, frame(at.symbol, behind.pack(), at.next, at.seen)));
  };
  const std::uint32_t all_asked = asked, all_asked_required = asked_required;
  for (std::uint32_t i = place.member; i < members; ++i) {
    const ObjectShape::Member& each = object.members[i];
    const bool is_asked = may_be_asked(i);
    asked -= is_asked;
    asked_required -= is_asked && each.required;
    if ((*usable_)[each.value]) {
      --declared;
      const std::uint32_t left = required - each.required;
      if (fits(left) && enough(declared)) {
        if (fits_unasked(left)) member(each.key, each.value, {.member = i + 1, .found = place.found});
        if (is_asked) member(each.key, object.asked->values[i], {.member = i + 1, .found = true});
      }
    }
    if (each.required) break;
  }
  if (others == 0 || !fits(required)) return;
  asked = all_asked;
  asked_required = all_asked_required;
  const bool unasked = fits_unasked(required);
  for (std::uint32_t i = 0; i < object.others.size() && unasked; ++i) {
    const ObjectShape::Member& other = object.others[i];
    if (!(*usable_)[other.value]) continue;
    const bool apart = object.distinct && place.count < object.least;
    Language key = other.key;
    if ((apart || object.asked) && at.seen != kNothing)
      key = languages_.all_of({key, languages_.except(at.seen)});
    if (languages_.is_empty(key)) continue;
    if (apart) {
      add(key, frame(kCopied, 0, place_of_frame, i));
    } else {
      member(key, other.value, {.member = place.member, .found = place.found});
    }
  }
  for (std::uint32_t i = 0; asks && i < object.asked->others.size(); ++i) {
    const ObjectShape::Member& other = object.asked->others[i];
    const auto which = static_cast<std::uint32_t>(object.others.size()) + i;
    if ((*usable_)[other.value]) add(other.key, frame(kCopied, 0, place_of_frame, which));
  }
}

void Matcher::enter_array(const Frame& at, std::uint32_t place_of_frame) {
  const ArrayShape& array = symbols_->arrays[symbols_->symbols[at.symbol].a];
  if (at.at == 0) {
    add(array.open, frame(at.symbol, 1, at.next));
    return;
  }
  if (array.counted) return enter_counted(array, at);
  if (at.at & kAtElement) {
    const Language element = symbols_->symbols[array.rest].a;
    add(languages_.all_of({element, languages_.except(at.seen)}), frame(kCopied, 0, place_of_frame));
    return;
  }
  const std::uint32_t count = at.at - 1;
  if (count >= array.least) add(array.close, at.next);
  if (array.most != kUnbounded && count >= array.most) return;
  const SymbolId item = count < array.first.size() ? array.first[count] : array.rest;
  if (item == kNoSymbol || !(*usable_)[item]) return;
  const auto matters = array.most != kUnbounded
                           ? array.most
                           : std::max({array.least, static_cast<std::uint32_t>(array.first.size()), 1u});
  const std::uint32_t at_behind = std::min(count + 1, matters) + 1;
  const Language before = count == 0 ? array.before_first : array.comma;
  if (array.distinct) {
    add(before, frame(at.symbol, at_behind | kAtElement, at.next, at.seen));
  } else {
    add(before, frame(item, 0, frame(at.symbol, at_behind, at.next)));
  }
}

void Matcher::enter_counted(const ArrayShape& array, const Frame& at) {
  const CountedElements& counted = *array.counted;
  const CountedPlace place = CountedPlace::of(at.at);
  if (place.count >= array.least && place.found >= counted.least) add(array.close, at.next);
  if (place.count >= array.most) return;
  const auto matters = array.most != kUnbounded
                           ? array.most
                           : std::max(array.least, static_cast<std::uint32_t>(array.first.size()));
  const std::uint32_t count = std::min(place.count + 1, std::max(matters, 1u));
  const Language before = place.count == 0 ? array.before_first : array.comma;
  const auto element = [&](const std::vector<SymbolId>& first, SymbolId rest, std::uint32_t found) {
    const SymbolId item = place.count < first.size() ? first[place.count] : rest;
    if (item == kNoSymbol || !(*usable_)[item] || !array.can_end(count, found, *usable_)) return;
    add(before, frame(item, 0, frame(at.symbol, CountedPlace{count, found}.pack(), at.next)));
  };
  element(array.first, array.rest, place.found);
  // Once there are enough nobody counts on.
  const bool counts = counted.most != kUnbounded ? place.found < counted.most : place.found < counted.least;
  if (counts) element(counted.first, counted.rest, place.found + 1);
}

Matcher::State Matcher::intern(std::vector<Way>& ways, bool complete) {
  if (ways.size() > 1) {
    std::sort(ways.begin(), ways.end(), [](const Way& x, const Way& y) {
      return std::pair(x.language, x.frame) < std::pair(y.language, y.frame);
    });
    ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
    join_alike(ways);
  }
  if (ways.empty() && !complete) return kDead;
  if (ways.size() == 1 && ways.front().unopened()) {
    const State state = opened_[ways.front().frame];
    if (states_[state].complete == complete) return state;
  }
  std::uint64_t hash = complete;
  for (const Way& way : ways) hash = mix(hash ^ (static_cast<std::uint64_t>(way.language) << 32 | way.frame));
  std::size_t last = state_table_.size() - 1;
  std::size_t i = hash & last;
  for (; state_table_[i] != kUnbounded; i = (i + 1) & last) {
    const Place& place = states_[state_table_[i]];
    if (place.count == ways.size() && place.complete == complete &&
        std::equal(ways.begin(), ways.end(), ways_.begin() + place.begin))
      return state_table_[i];
  }
  const auto made = static_cast<State>(states_.size());
  state_table_[i] = made;
  Place place{.begin = static_cast<std::uint32_t>(ways_.size()),
              .count = static_cast<std::uint32_t>(ways.size())};
  place.complete = complete;
  place.plain_ends = true;
  place.uniform = !ways.empty() && !complete;
  for (const Way& way : ways) {
    PlainPrefix prefix;
    if (way.unopened()) {
      const Place& behind = states_[opened_[way.frame]];
      prefix = {.length = behind.plain, .ends = behind.plain_ends, .uniform = behind.uniform};
      place.in_copied |= behind.in_copied;
      place.in_others |= behind.in_others;
      place.copying |= behind.copying;
      place.first = place.first | behind.first;
    } else {
      (is_copied(way) ? place.in_copied : place.in_others) = true;
      place.copying |= copies(way);
      place.apart |= is_apart(way);
      place.first = place.first | languages_.first_bytes(way.language);
      prefix = languages_.plain_prefix(way.language);
      prefix.uniform &= !copies(way);
    }
    place.uniform &= prefix.uniform && (&way == ways.data() || prefix.length == place.plain);
    place.plain = std::max(place.plain, prefix.length);
    place.plain_ends &= prefix.ends;
  }
  place.apart &= !place.copying;
  ways_.insert(ways_.end(), ways.begin(), ways.end());
  states_.push_back(place);
  state_hashes_.push_back(static_cast<std::uint32_t>(hash));
  if (states_.size() * 2 > state_table_.size()) {
    state_table_.assign(state_table_.size() * 2, kUnbounded);
    last = state_table_.size() - 1;
    for (State each = 1; each < states_.size(); ++each) {
      std::size_t k = state_hashes_[each] & last;
      while (state_table_[k] != kUnbounded) k = (k + 1) & last;
      state_table_[k] = each;
    }
  }
  return made;
}

void Matcher::join(State state, std::vector<Way>& ways, bool& complete) const {
  const Place& place = states_[state];
  complete |= place.complete;
  ways.insert(ways.end(), ways_.begin() + place.begin, ways_.begin() + place.begin + place.count);
}

std::span<const std::uint32_t> Matcher::going_on(State state, std::uint8_t byte) {
  const Place& place = states_[state];
  if (place.count < kManyWays) {
    while (all_ways_.size() < place.count) all_ways_.push_back(static_cast<std::uint32_t>(all_ways_.size()));
    return {all_ways_.data(), place.count};
  }
  if (place.crossing == kUnbounded) {
    states_[state].crossing = static_cast<std::uint32_t>(crossings_.size());
    Crossing& made = crossings_.emplace_back();
    const auto first = [&](std::uint32_t way) {
      const Way& at = ways_[place.begin + way];
      return at.unopened() ? ByteSet::range(0, 255) : languages_.first_bytes(at.language);
    };
    for (std::uint32_t way = 0; way < place.count; ++way)
      first(way).for_each([&](unsigned at) { ++made.begin[at + 1]; });
    for (std::size_t at = 0; at < 256; ++at) made.begin[at + 1] += made.begin[at];
    made.ways.resize(made.begin[256]);
    std::array<std::uint32_t, 257> end = made.begin;
    for (std::uint32_t way = 0; way < place.count; ++way) {
      first(way).for_each([&](unsigned at) {
        made.ways[end[at]++] = way;
        made.which[at] = mix(made.which[at] ^ (way + 1));
      });
    }
  }
  const Crossing& crossing = crossings_[states_[state].crossing];
  return std::span(crossing.ways)
      .subspan(crossing.begin[byte], crossing.begin[byte + 1u] - crossing.begin[byte]);
}

// Bytes that lead where this one leads.
ByteSet Matcher::alike(const Place& place, std::span<const std::uint32_t> ways, std::uint8_t byte) {
  ByteSet alike = ByteSet::range(0, 255);
  if (place.crossing != kUnbounded) {
    const Crossing& crossing = crossings_[place.crossing];
    alike = ByteSet{};
    for (unsigned other = 0; other < 256; ++other)
      alike.words[other / 64] |= std::uint64_t{crossing.which[other] == crossing.which[byte]} << other % 64;
  }
  for (const std::uint32_t i : ways) {
    const Way way = ways_[place.begin + i];
    if (!way.unopened()) {
      alike = alike & languages_.alike(way.language, byte);
      continue;
    }
    const State behind = opened_[way.frame];
    const State next = step(behind, byte);
    const Row& row = *states_[behind].row;
    ByteSet same;
    for (unsigned other = 0; other < 256; ++other)
      same.words[other / 64] |= std::uint64_t{row[other] == next} << other % 64;
    alike = alike & same;
  }
  return alike;
}

Matcher::State Matcher::make_step(State state, std::uint8_t byte) {
  if (states_[state].row == nullptr && !states_[state].copying)
    states_[state].row = make_row(states_[state].first);
  if (!states_[state].first.has(byte)) return kDead;
  // What stands behind unopened ways is stepped before anything is made: those steps use the same space.
  for (std::uint32_t i = 0; i < states_[state].count; ++i)
    if (const Way way = ways_[states_[state].begin + i]; way.unopened()) step(opened_[way.frame], byte);
  const std::span<const std::uint32_t> ways = going_on(state, byte);
  const Place place = states_[state];
  made_.clear();
  bool complete = false;
  for (const std::uint32_t i : ways) {
    Way way = ways_[place.begin + i];
    if (way.unopened()) {
      join(step(opened_[way.frame], byte), made_, complete);
      continue;
    }
    const Language next = languages_.derivative(way.language, byte);
    if (next == kNothing || languages_.is_empty(next)) continue;
    if (copies(way)) {
      const Frame copied = frames_[way.frame];
      way.frame = frame(kCopied, copy(copied.at, byte), copied.next, copied.seen);
    }
    if (next != kEmptyText) made_.push_back({next, way.frame});
    if (!languages_.has_empty_text(next)) continue;
    const State behind = opened(way.frame);
    if (states_[behind].count < kFewWays) {
      join(behind, made_, complete);
    } else {
      complete |= states_[behind].complete;
      made_.push_back({kEmptyText, way.frame});
    }
  }
  const State made = intern(made_, complete);
  if (place.copying) return made;
  if (place.first.single()) {
    (*place.row)[byte] = made;
  } else {
    alike(place, ways, byte).for_each([&](unsigned other) { (*place.row)[other] = made; });
  }
  return made;
}

}  // namespace nibble
