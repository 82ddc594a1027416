#include "grammar/symbols.h"

#include <algorithm>

namespace nibble {
namespace {

// Symbols between two looks at the clock.
constexpr std::size_t kUnchecked = 256;

}  // namespace

std::uint32_t CountedElements::numbers() const {
  std::uint64_t all = 1;
  for (const Thing& thing : things) all = std::min<std::uint64_t>(all * (thing.last() + 1ull), kUnbounded);
  return static_cast<std::uint32_t>(all);
}

std::optional<std::uint32_t> CountedElements::with(std::uint32_t found, std::uint32_t set) const {
  std::uint32_t unit = 1;
  for (std::size_t i = 0; i < things.size(); ++i) {
    const std::uint32_t each = things[i].last() + 1;
    if (set >> i & 1) {
      if (found / unit % each == things[i].last()) return std::nullopt;
      found += unit;
    }
    unit *= each;
  }
  return found;
}

bool CountedElements::is_enough(std::uint32_t found) const {
  for (const Thing& thing : things) {
    if (found % (thing.last() + 1) < thing.least) return false;
    found /= thing.last() + 1;
  }
  return true;
}

bool ArrayShape::can_end(std::uint32_t count, std::uint32_t found, const std::vector<bool>& usable) const {
  std::size_t enough = std::max<std::size_t>({count, least, counted->as.front().first.size()});
  for (const CountedElements::Thing& thing : counted->things) enough += thing.least;
  std::vector<std::uint32_t> reached{found};  // ascending
  for (std::uint32_t length = count;; ++length) {
    const auto is_enough = [this](std::uint32_t each) { return counted->is_enough(each); };
    if (length >= least && std::ranges::any_of(reached, is_enough)) return true;
    if (length >= most || length > enough) return false;
    std::vector<std::uint32_t> next;
    for (std::uint32_t set = 0; set < counted->as.size(); ++set) {
      const SymbolId symbol = counted->as[set].at(length);
      if (symbol == kNoSymbol || !usable[symbol]) continue;
      for (const std::uint32_t each : reached)
        if (const auto with = counted->with(each, set)) next.push_back(*with);
    }
    std::ranges::sort(next);
    next.erase(std::unique(next.begin(), next.end()), next.end());
    if (next.empty()) return false;
    // The more of a thing that has no most the better.
    if (counted->things.size() == 1 && counted->things.front().most == kUnbounded) next = {next.back()};
    reached.swap(next);
  }
}

AskedNeeds ObjectShape::asked_needs(const std::vector<bool>& usable) const {
  AskedNeeds needs(members.size() + 1);
  for (auto& each : needs) each.fill(kUnbounded);
  const auto more = [](std::uint32_t members_behind, std::uint32_t here) {
    return members_behind == kUnbounded ? kUnbounded : members_behind + here;
  };
  for (auto& each : needs) each[0] = 0;
  for (AskedSet set = 1; set <= asked->all(); ++set) {
    std::uint32_t& fewest = needs.back()[set];
    for (const AskedMembers::Other& other : asked->others)
      if (usable[other.value] && (other.as & ~set) == 0)
        fewest = std::min(fewest, more(needs.back()[set & ~other.as], 1));
  }
  for (std::size_t i = members.size(); i-- > 0;) {
    for (AskedSet set = 1; set <= asked->all(); ++set) {
      std::uint32_t& fewest = needs[i][set];
      fewest = needs[i + 1][set];
      for (AskedSet as = 1; as <= asked->all(); ++as) {
        const SymbolId value = asked->value(i, as);
        if ((as & ~set) == 0 && value != kNoSymbol && usable[value])
          fewest = std::min(fewest, more(needs[i + 1][set & ~as], members[i].required ? 0 : 1));
      }
    }
  }
  return needs;
}

SymbolId Symbols::add(const Symbol& symbol) {
  symbols.push_back(symbol);
  return static_cast<SymbolId>(symbols.size() - 1);
}

SymbolId Symbols::text(Language language) { return add({.kind = Symbol::Kind::text, .a = language}); }

SymbolId Symbols::sequence(std::span<const SymbolId> of) {
  if (of.size() == 1) return of.front();
  if (std::all_of(of.begin(), of.end(), [&](SymbolId part) { return is_text(part); })) {
    Language made = kEmptyText;
    for (std::size_t i = of.size(); i-- > 0;) made = languages.concat(symbols[of[i]].a, made);
    return text(made);
  }
  const auto begin = static_cast<std::uint32_t>(parts.size());
  parts.insert(parts.end(), of.begin(), of.end());
  return add({.kind = Symbol::Kind::sequence, .a = begin, .b = static_cast<std::uint32_t>(of.size())});
}

SymbolId Symbols::choice(std::span<const SymbolId> of) {
  if (of.size() == 1) return of.front();
  std::vector<Language> texts;
  std::vector<SymbolId> others;
  for (const SymbolId part : of) {
    if (is_text(part)) {
      texts.push_back(symbols[part].a);
    } else {
      others.push_back(part);
    }
  }
  const Language all = languages.any_of(texts);
  if (others.empty()) return text(all);
  if (all != kNothing) others.push_back(text(all));
  if (others.size() == 1) return others.front();
  const auto begin = static_cast<std::uint32_t>(parts.size());
  parts.insert(parts.end(), others.begin(), others.end());
  return add({.kind = Symbol::Kind::choice, .a = begin, .b = static_cast<std::uint32_t>(others.size())});
}

SymbolId Symbols::repeat(SymbolId part, std::uint32_t least, std::uint32_t most) {
  if (is_text(part)) return text(languages.repeat(symbols[part].a, least, most));
  return add({.kind = Symbol::Kind::repeat, .a = part, .b = least, .c = most});
}

Result<std::vector<bool>> Symbols::productive(const CompileClock& clock) {
  std::vector<bool> is(symbols.size());
  const auto is_productive = [&](SymbolId s) { return is[s]; };
  const auto now = [&](const Symbol& symbol) {
    switch (symbol.kind) {
      case Symbol::Kind::text: return !languages.is_empty(symbol.a);
      case Symbol::Kind::sequence: return std::ranges::all_of(parts_of(symbol), is_productive);
      case Symbol::Kind::choice: return std::ranges::any_of(parts_of(symbol), is_productive);
      case Symbol::Kind::repeat: return symbol.b == 0 || is[symbol.a];
      case Symbol::Kind::object: {
        const ObjectShape& object = objects[symbol.a];
        std::size_t possible = 0, required = 0;
        for (const auto& member : object.members) {
          const bool can = is[member.value];
          if (member.required && !can) return false;
          possible += can;
          required += member.required;
        }
        if (object.asked) {
          const std::uint32_t needed = object.asked_needs(is).front()[object.asked->all()];
          if (needed == kUnbounded) return false;
          required += needed;
        }
        for (const auto& other : object.others)
          if (is[other.value]) possible += other.names;
        return possible >= object.least && object.most >= std::max<std::size_t>(object.least, required);
      }
      case Symbol::Kind::array: {
        const ArrayShape& array = arrays[symbol.a];
        if (array.counted) return array.can_end(0, 0, is);
        if (array.least > array.most) return false;
        for (std::size_t i = 0; i < std::min<std::size_t>(array.least, array.first.size()); ++i)
          if (!is[array.first[i]]) return false;
        return array.least <= array.first.size() || (array.rest != kNoSymbol && is[array.rest]);
      }
      case Symbol::Kind::undefined: return false;
    }
    return false;
  };
  for (bool changed = true; changed;) {
    changed = false;
    // What a symbol is made of mostly stands before it or behind it: both ways settle most in a pass or two.
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      if (i % kUnchecked == 0) NIBBLE_RETURN_IF_ERROR(clock.check());
      if (!is[i] && now(symbols[i])) is[i] = changed = true;
    }
    for (std::size_t i = symbols.size(); i-- > 0;) {
      if (i % kUnchecked == 0) NIBBLE_RETURN_IF_ERROR(clock.check());
      if (!is[i] && now(symbols[i])) is[i] = changed = true;
    }
  }
  return is;
}

Result<std::vector<bool>> Symbols::nullable(const CompileClock& clock) {
  std::vector<bool> is(symbols.size());
  const auto is_nullable = [&](SymbolId s) { return is[s]; };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      if (i % kUnchecked == 0) NIBBLE_RETURN_IF_ERROR(clock.check());
      if (is[i]) continue;
      const Symbol& symbol = symbols[i];
      bool now = false;
      switch (symbol.kind) {
        case Symbol::Kind::text: now = languages.has_empty_text(symbol.a); break;
        case Symbol::Kind::repeat: now = symbol.b == 0 || is[symbol.a]; break;
        case Symbol::Kind::sequence: now = std::ranges::all_of(parts_of(symbol), is_nullable); break;
        case Symbol::Kind::choice: now = std::ranges::any_of(parts_of(symbol), is_nullable); break;
        default: break;
      }
      if (now) is[i] = changed = true;
    }
  }
  return is;
}

}  // namespace nibble
