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

}  // namespace

Matcher::Matcher(std::shared_ptr<const Symbols> symbols, std::shared_ptr<const std::vector<bool>> usable)
    : symbols_(std::move(symbols)), usable_(std::move(usable)) {
  const auto distinct = [](const auto& shape) { return shape.distinct; };
  const auto asks = [](const ObjectShape& object) { return object.asked.has_value(); };
  tells_apart_ = std::ranges::any_of(symbols_->objects, distinct) ||
                 std::ranges::any_of(symbols_->arrays, distinct) ||
                 std::ranges::any_of(symbols_->objects, asks);
  for (const ObjectShape& object : symbols_->objects)
    asked_needs_.push_back(object.asked ? object.asked_needs(*usable_) : AskedNeeds{});
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
