#include "grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nibble {
namespace {

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 32;
  value *= 0x9E3779B97F4A7C15ull;
  return value ^ value >> 29;
}

// Frames that open into fewer ways are opened at once: most of them are one text.
constexpr std::uint32_t kFewWays = 5;
constexpr std::uint32_t kManyWays = 12;

// How far an object is: 0 before its brace, else one more than this.
struct ObjectPlace {
  std::uint32_t member = 0;  // the first that may still come
  std::uint32_t count = 0;   // members so far, no more than matter
  bool at_key = false;       // a key comes next; else a comma, the first key's white space, or the end
  static ObjectPlace of(std::uint32_t at) {
    return {(at - 1) >> 17, (at - 1) >> 1 & 0xFFFF, ((at - 1) & 1) != 0};
  }
  std::uint32_t pack() const { return (member << 17 | count << 1 | at_key) + 1; }
};

}  // namespace

Matcher::Matcher(std::shared_ptr<const Symbols> symbols, std::shared_ptr<const std::vector<bool>> usable)
    : symbols_(std::move(symbols)), usable_(std::move(usable)), languages_(symbols_->languages) {
  reset();
}

void Matcher::reset() {
  languages_ = symbols_->languages;
  frames_.assign(1, Frame{kNoSymbol, 0, 0});
  entered_.assign(1, 0);
  opened_.assign(1, kUnbounded);
  frame_table_.assign(256, kUnbounded);
  state_table_.assign(256, kUnbounded);
  ways_.clear();
  states_.assign(1, Place{});
  rows_.clear();
  crossings_.clear();
  rows_.emplace_back().fill(kDead);
  states_[kDead].row = &rows_.back();
  opening_ = 0;
  start_ = (*usable_)[symbols_->root] ? opened(frame(symbols_->root, 0, 0)) : kDead;
}

std::size_t Matcher::memory() const {
  return rows_.size() * sizeof(Row) + crossings_.size() * 2 * sizeof(Crossing) +
         states_.capacity() * sizeof(Place) + ways_.capacity() * sizeof(Way) +
         frames_.capacity() * (sizeof(Frame) + 16) + languages_.size() * 128;
}

std::uint32_t Matcher::frame(SymbolId symbol, std::uint32_t at, std::uint32_t next) {
  const std::uint64_t hash = mix(mix(static_cast<std::uint64_t>(symbol) << 32 | at) ^ next);
  const std::size_t last = frame_table_.size() - 1;
  std::size_t i = hash & last;
  for (; frame_table_[i] != kUnbounded; i = (i + 1) & last) {
    const Frame& f = frames_[frame_table_[i]];
    if (f.symbol == symbol && f.at == at && f.next == next) return frame_table_[i];
  }
  const auto made = static_cast<std::uint32_t>(frames_.size());
  frame_table_[i] = made;
  frames_.push_back({symbol, at, next});
  entered_.push_back(0);
  opened_.push_back(kUnbounded);
  if (frames_.size() * 2 > frame_table_.size()) {
    frame_table_.assign(frame_table_.size() * 2, kUnbounded);
    for (std::uint32_t each = 1; each < frames_.size(); ++each) {
      const Frame& f = frames_[each];
      std::size_t k =
          mix(mix(static_cast<std::uint64_t>(f.symbol) << 32 | f.at) ^ f.next) & (frame_table_.size() - 1);
      while (frame_table_[k] != kUnbounded) k = (k + 1) & (frame_table_.size() - 1);
      frame_table_[k] = each;
    }
  }
  return made;
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
    const Frame at = frames_[open_.back()];
    open_.pop_back();
    if (at.symbol == kNoSymbol) {
      found_end_ = true;
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
      case Symbol::Kind::object: enter_object(at); break;
      case Symbol::Kind::array: enter_array(at); break;
      case Symbol::Kind::undefined: break;
    }
  }
}

void Matcher::enter_object(const Frame& at) {
  const ObjectShape& object = symbols_->objects[symbols_->symbols[at.symbol].a];
  if (at.at == 0) {
    add(object.open, frame(at.symbol, ObjectPlace{}.pack(), at.next));
    return;
  }
  const ObjectPlace place = ObjectPlace::of(at.at);
  const auto members = static_cast<std::uint32_t>(object.members.size());
  if (!place.at_key) {
    const auto required = [](const ObjectShape::Member& member) { return member.required; };
    const bool all = std::none_of(object.members.begin() + place.member, object.members.end(), required);
    if (all && place.count >= object.least) add(object.close, at.next);
    if ((object.most == kUnbounded || place.count < object.most) && member_may_come(object, place.member)) {
      const ObjectPlace key{.member = place.member, .count = place.count, .at_key = true};
      add(place.count == 0 ? object.before_first : object.comma, frame(at.symbol, key.pack(), at.next));
    }
    return;
  }
  const std::uint32_t matters = object.most != kUnbounded ? object.most : std::max(object.least, 1u);
  const std::uint32_t count = std::min(place.count + 1, matters);
  const auto member = [&](const ObjectShape::Member& each, std::uint32_t next_member) {
    if (!(*usable_)[each.value]) return;
    const std::uint32_t behind =
        frame(at.symbol, ObjectPlace{.member = next_member, .count = count}.pack(), at.next);
    add(each.key, frame(each.value, 0, behind));
  };
  for (std::uint32_t i = place.member; i < members; ++i) {
    member(object.members[i], i + 1);
    if (object.members[i].required) break;
  }
  for (const auto& other : object.others) member(other, place.member);
}

bool Matcher::member_may_come(const ObjectShape& object, std::uint32_t first) const {
  const auto can = [&](const ObjectShape::Member& member) { return (*usable_)[member.value]; };
  if (std::any_of(object.others.begin(), object.others.end(), can)) return true;
  for (std::size_t i = first; i < object.members.size(); ++i) {
    if (can(object.members[i])) return true;
    if (object.members[i].required) break;
  }
  return false;
}

void Matcher::enter_array(const Frame& at) {
  const ArrayShape& array = symbols_->arrays[symbols_->symbols[at.symbol].a];
  if (at.at == 0) {
    add(array.open, frame(at.symbol, 1, at.next));
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
  const std::uint32_t behind = frame(at.symbol, std::min(count + 1, matters) + 1, at.next);
  add(count == 0 ? array.before_first : array.comma, frame(item, 0, behind));
}

Matcher::State Matcher::intern(std::vector<Way>& ways, bool complete) {
  if (ways.size() > 1) {
    std::sort(ways.begin(), ways.end(), [](const Way& x, const Way& y) {
      return std::pair(x.language, x.frame) < std::pair(y.language, y.frame);
    });
    ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
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
    } else {
      prefix = languages_.plain_prefix(way.language);
    }
    place.uniform &= prefix.uniform && (&way == ways.data() || prefix.length == place.plain);
    place.plain = std::max(place.plain, prefix.length);
    place.plain_ends &= prefix.ends;
  }
  ways_.insert(ways_.end(), ways.begin(), ways.end());
  states_.push_back(place);
  if (states_.size() * 2 > state_table_.size()) {
    state_table_.assign(state_table_.size() * 2, kUnbounded);
    last = state_table_.size() - 1;
    for (State each = 1; each < states_.size(); ++each) {
      std::uint64_t h = states_[each].complete;
      for (std::uint32_t w = 0; w < states_[each].count; ++w) {
        const Way& way = ways_[states_[each].begin + w];
        h = mix(h ^ (static_cast<std::uint64_t>(way.language) << 32 | way.frame));
      }
      std::size_t k = h & last;
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
  if (states_[state].row == nullptr) {
    rows_.emplace_back().fill(kUnbounded);
    states_[state].row = &rows_.back();
  }
  // What stands behind unopened ways is stepped before anything is made: those steps use the same space.
  for (std::uint32_t i = 0; i < states_[state].count; ++i)
    if (const Way way = ways_[states_[state].begin + i]; way.unopened()) step(opened_[way.frame], byte);
  const std::span<const std::uint32_t> ways = going_on(state, byte);
  const Place place = states_[state];
  made_.clear();
  bool complete = false;
  for (const std::uint32_t i : ways) {
    const Way way = ways_[place.begin + i];
    if (way.unopened()) {
      join(step(opened_[way.frame], byte), made_, complete);
      continue;
    }
    const Language next = languages_.derivative(way.language, byte);
    if (next == kNothing || languages_.is_empty(next)) continue;
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
  alike(place, ways, byte).for_each([&](unsigned other) { (*place.row)[other] = made; });
  return made;
}

}  // namespace nibble
