#include "grammar/languages.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "base/check.h"

namespace nibble {
namespace {

constexpr std::size_t kEffort = 20'000;

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 32;
  value *= 0x9E3779B97F4A7C15ull;
  value ^= value >> 29;
  value *= 0xBF58476D1CE4E5B9ull;
  return value ^ value >> 32;
}

}  // namespace

std::uint32_t& WordMap::at(std::uint64_t key) {
  if (used_ * 2 >= slots_.size()) grow();
  const std::size_t last = slots_.size() - 1;
  for (std::size_t i = mix(key) & last;; i = (i + 1) & last) {
    if (slots_[i].key == key) return slots_[i].value;
    if (slots_[i].key == ~std::uint64_t{0}) {
      slots_[i].key = key;
      ++used_;
      return slots_[i].value;
    }
  }
}

void WordMap::grow() {
  std::vector<Slot> old(std::max<std::size_t>(64, slots_.size() * 2));
  old.swap(slots_);
  const std::size_t last = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.key == ~std::uint64_t{0}) continue;
    std::size_t i = mix(slot.key) & last;
    while (slots_[i].key != ~std::uint64_t{0}) i = (i + 1) & last;
    slots_[i] = slot;
  }
}

Languages::Languages() {
  table_.assign(256, kUnbounded);
  single_sets_.fill(kUnbounded);
  NIBBLE_CHECK(intern({.kind = Kind::nothing}) == kNothing);
  NIBBLE_CHECK(intern({.kind = Kind::empty_text, .nullable = true}) == kEmptyText);
  // kEverything is (any byte)*; the byte's own expression comes behind it.
  NIBBLE_CHECK(intern({.kind = Kind::repeat, .nullable = true, .a = kAnyByte, .b = 0, .c = kUnbounded}) ==
               kEverything);
  NIBBLE_CHECK(bytes(ByteSet::range(0, 255)) == kAnyByte);
  digit_set_ = intern_set(ByteSet::range('0', '9'));
  point_set_ = intern_set(ByteSet::range('.', '.'));
}

bool Languages::same_list(const Node& node, std::span<const Language> parts) const {
  return node.b == parts.size() && std::equal(parts.begin(), parts.end(), lists_.begin() + node.a);
}

std::uint64_t Languages::hash_of(const Node& node) const {
  std::uint64_t hash = static_cast<std::uint64_t>(node.kind);
  if (node.kind == Kind::any_of || node.kind == Kind::all_of) {
    for (const Language part : list(node)) hash = mix(hash ^ part);
    return hash;
  }
  hash = mix(hash << 56 ^ static_cast<std::uint64_t>(node.a) << 20 ^ node.c);
  return mix(hash ^ node.b);
}

Language Languages::append(const Node& node, std::size_t slot) {
  const auto made = static_cast<Language>(nodes_.size());
  table_[slot] = made;
  nodes_.push_back(node);
  first_.push_back(made == kEverything ? ByteSet::range(0, 255) : first_of(node));
  least_length_.push_back(node.nullable ? 0 : least_length_of(node));
  classes_places_.push_back(kUnbounded);
  emptiness_.push_back(node.plain ? (node.kind == Kind::nothing ? kIsEmpty : kIsNot) : kUnknown);
  if (nodes_.size() * 2 <= table_.size()) return made;
  table_.assign(table_.size() * 2, kUnbounded);
  const std::size_t last = table_.size() - 1;
  for (Language each = 0; each < nodes_.size(); ++each) {
    std::size_t i = hash_of(nodes_[each]) & last;
    while (table_[i] != kUnbounded) i = (i + 1) & last;
    table_[i] = each;
  }
  return made;
}

Language Languages::intern(const Node& node) {
  const std::size_t last = table_.size() - 1;
  std::size_t i = hash_of(node) & last;
  for (; table_[i] != kUnbounded; i = (i + 1) & last) {
    const Node& other = nodes_[table_[i]];
    if (other.kind == node.kind && other.a == node.a && other.b == node.b && other.c == node.c)
      return table_[i];
  }
  return append(node, i);
}

Language Languages::intern_list(Kind kind, std::span<const Language> parts) {
  Node node{.kind = kind, .nullable = kind == Kind::all_of, .plain = kind == Kind::any_of};
  node.given = kind == Kind::any_of &&
               std::ranges::all_of(parts, [this](Language part) { return nodes_[part].given; });
  std::uint64_t hash = static_cast<std::uint64_t>(kind);
  for (const Language part : parts) hash = mix(hash ^ part);
  const std::size_t last = table_.size() - 1;
  std::size_t i = hash & last;
  for (; table_[i] != kUnbounded; i = (i + 1) & last) {
    const Node& other = nodes_[table_[i]];
    if (other.kind == kind && same_list(other, parts)) return table_[i];
  }
  for (const Language part : parts) {
    node.counts |= nodes_[part].counts;
    if (kind == Kind::any_of) {
      node.nullable |= nodes_[part].nullable;
      node.plain &= nodes_[part].plain;
    } else {
      node.nullable &= nodes_[part].nullable;
    }
  }
  node.a = static_cast<std::uint32_t>(lists_.size());
  node.b = static_cast<std::uint32_t>(parts.size());
  lists_.insert(lists_.end(), parts.begin(), parts.end());
  return append(node, i);
}

std::size_t Languages::SetHash::operator()(const ByteSet& set) const {
  std::uint64_t hash = 0;
  for (const std::uint64_t word : set.words) hash = mix(hash ^ word);
  return hash;
}

std::uint32_t Languages::intern_set(const ByteSet& set) {
  const unsigned first = set.first();
  const bool single = first < 256 && set == ByteSet::range(first, first);
  if (single && single_sets_[first] != kUnbounded) return single_sets_[first];
  const auto [at, added] = set_places_.try_emplace(set, static_cast<std::uint32_t>(sets_.size()));
  if (added) sets_.push_back(set);
  if (single) single_sets_[first] = at->second;
  return at->second;
}

Language Languages::bytes(const ByteSet& set) {
  if (set.empty()) return kNothing;
  return intern({.kind = Kind::bytes, .given = set.count() == 1, .a = intern_set(set)});
}

Language Languages::literal(std::string_view text) {
  Language made = kEmptyText;
  for (std::size_t i = text.size(); i-- > 0;) {
    const auto byte = static_cast<unsigned char>(text[i]);
    made = concat(bytes(ByteSet::range(byte, byte)), made);
  }
  return made;
}

Language Languages::concat(Language first, Language second) {
  if (first == kNothing || second == kNothing) return kNothing;
  if (first == kEmptyText) return second;
  if (second == kEmptyText) return first;
  const Node node = nodes_[first];
  // Kept in one shape, a list to the right, so that equal texts are one expression.
  if (node.kind == Kind::concat) return concat(node.a, concat(node.b, second));
  return intern({.kind = Kind::concat,
                 .nullable = node.nullable && nodes_[second].nullable,
                 .plain = node.plain && nodes_[second].plain,
                 .counts = node.counts || nodes_[second].counts,
                 .given = is_one_byte(first) && nodes_[second].given && nodes_[second].kind != Kind::any_of,
                 .a = first,
                 .b = second});
}

Language Languages::concat(std::initializer_list<Language> parts) {
  Language made = kEmptyText;
  for (auto part = std::rbegin(parts); part != std::rend(parts); ++part) made = concat(*part, made);
  return made;
}

Language Languages::any_of(std::span<const Language> choices) {
  std::vector<Language> parts;
  ByteSet single;
  const auto add = [&](Language part) {
    if (part == kNothing) return;
    if (nodes_[part].kind == Kind::bytes) {
      single = single | sets_[nodes_[part].a];
    } else {
      parts.push_back(part);
    }
  };
  for (const Language choice : choices) {
    if (choice == kEverything) return kEverything;
    if (nodes_[choice].kind == Kind::any_of) {
      for (const Language part : list(nodes_[choice])) add(part);
    } else {
      add(choice);
    }
  }
  if (!single.empty()) parts.push_back(bytes(single));
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  if (parts.size() > 1) drop_within(parts);
  // Of x{0,m} y with several m the largest says all.
  if (parts.size() > 1) {
    struct Counted {
      std::uint32_t part, rest, most;
      Language language;
    };
    std::vector<Counted> counted;
    for (const Language part : parts) {
      const Node& node = nodes_[part];
      const bool tail = node.kind == Kind::concat;
      const Node& head = tail ? nodes_[node.a] : node;
      if (head.kind == Kind::repeat && head.b == 0)
        counted.push_back({head.a, tail ? node.b : kEmptyText, head.c, part});
    }
    if (counted.size() > 1) {
      std::sort(counted.begin(), counted.end(), [](const Counted& x, const Counted& y) {
        return std::pair(x.part, x.rest) != std::pair(y.part, y.rest)
                   ? std::pair(x.part, x.rest) < std::pair(y.part, y.rest)
                   : x.most > y.most;
      });
      for (std::size_t i = 1; i < counted.size(); ++i)
        if (counted[i].part == counted[i - 1].part && counted[i].rest == counted[i - 1].rest)
          std::erase(parts, counted[i].language);
    }
  }
  if (parts.empty()) return kNothing;
  if (parts.size() == 1) return parts.front();
  return intern_list(Kind::any_of, parts);
}

Language Languages::all_of(std::span<const Language> choices) {
  std::vector<Language> parts;
  for (const Language choice : choices) {
    if (choice == kNothing) return kNothing;
    if (choice == kEverything) continue;
    if (nodes_[choice].kind == Kind::all_of) {
      const auto inner = list(nodes_[choice]);
      parts.insert(parts.end(), inner.begin(), inner.end());
    } else {
      parts.push_back(choice);
    }
  }
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  if (parts.size() > 1 && (!drop_given(parts) || !drop_around(parts))) return kNothing;
  if (parts.empty()) return kEverything;
  if (parts.size() == 1) return parts.front();
  for (const Language part : parts) {
    if (part == kEmptyText) {
      for (const Language other : parts)
        if (!nodes_[other].nullable) return kNothing;
      return kEmptyText;
    }
  }
  return intern_list(Kind::all_of, parts);
}

Language Languages::except(Language excluded) {
  if (excluded == kNothing) return kEverything;
  if (excluded == kEverything) return kNothing;
  if (nodes_[excluded].kind == Kind::except) return nodes_[excluded].a;
  return intern(
      {.kind = Kind::except, .nullable = !nodes_[excluded].nullable, .plain = false, .a = excluded});
}

Language Languages::repeat(Language part, std::uint32_t least, std::uint32_t most) {
  if (most == 0 || part == kEmptyText) return kEmptyText;
  if (part == kNothing) return least == 0 ? kEmptyText : kNothing;
  if (least == 1 && most == 1) return part;
  if (part == kAnyByte && least == 0 && most == kUnbounded) return kEverything;
  const Node node = nodes_[part];
  if (node.nullable) least = 0;
  if (node.kind == Kind::repeat && node.b == 0 && node.c == kUnbounded && least <= 1) return part;
  return intern({.kind = Kind::repeat,
                 .nullable = least == 0,
                 .plain = node.plain,
                 .counts = node.counts || many_times(most),
                 .a = part,
                 .b = least,
                 .c = most});
}

ByteSet Languages::first_of(const Node& node) const {
  ByteSet first;
  switch (node.kind) {
    case Kind::nothing:
    case Kind::empty_text: return first;
    case Kind::bytes: return sets_[node.a];
    case Kind::concat: return nodes_[node.a].nullable ? first_[node.a] | first_[node.b] : first_[node.a];
    case Kind::any_of:
      for (const Language part : list(node)) first = first | first_[part];
      return first;
    case Kind::all_of:
      first = ByteSet::range(0, 255);
      for (const Language part : list(node)) first = first & first_[part];
      return first;
    case Kind::except: return ByteSet::range(0, 255);
    case Kind::repeat: return first_[node.a];
    case Kind::compared:
    case Kind::multiple: return sets_[digit_set_] | sets_[point_set_];
  }
  return first;
}

std::size_t Languages::memory() const {
  return nodes_.size() * 128 + classes_.size() * (sizeof(ByteClasses) + 8 * sizeof(ByteClass));
}

Languages::ByteClasses& Languages::classes_of(Language language) {
  std::uint32_t& place = classes_places_[language];
  if (place == kUnbounded) {
    place = static_cast<std::uint32_t>(classes_.size());
    classes_.emplace_back();
  }
  return classes_[place];
}

Language Languages::remembered_derivative(Language language, std::uint8_t byte) {
  alike(language, byte);
  const std::uint8_t place = classes_of(language).of[byte];
  if (place == 0) return derive(language, byte);
  const Language known = classes_of(language).classes[place - 1u].derivative;
  if (known != kUnbounded) return known;
  const Language made = derive(language, byte);
  classes_of(language).classes[place - 1u].derivative = made;
  return made;
}

Language Languages::derive(Language language, std::uint8_t byte) {
  const Node node = nodes_[language];  // a copy: nodes_ grows below
  switch (node.kind) {
    case Kind::nothing:
    case Kind::empty_text: return kNothing;
    case Kind::bytes: return kEmptyText;
    case Kind::concat: {
      const Language first = concat(derivative(node.a, byte), node.b);
      if (!nodes_[node.a].nullable) return first;
      return any_of({first, derivative(node.b, byte)});
    }
    case Kind::any_of:
    case Kind::all_of: {
      std::vector<Language> parts(list(node).begin(), list(node).end());
      for (Language& part : parts) part = derivative(part, byte);
      return node.kind == Kind::any_of ? any_of(parts) : all_of(parts);
    }
    case Kind::except: return except(derivative(node.a, byte));
    case Kind::repeat: {
      const std::uint32_t least = node.b == 0 ? 0 : node.b - 1;
      const std::uint32_t most = node.c == kUnbounded ? kUnbounded : node.c - 1;
      const Language first = derivative(node.a, byte);
      if (first == kNothing) return kNothing;
      return concat(first, repeat(node.a, least, most));
    }
    case Kind::compared: return derive_compared(node, byte);
    case Kind::multiple: return derive_multiple(node, byte);
  }
  return kNothing;
}

ByteSet Languages::alike(Language language, std::uint8_t byte) {
  const ByteSet first = first_[language];
  if (!first.has(byte)) return ~first;
  const Node& node = nodes_[language];
  if (node.kind == Kind::bytes || begins_with_bytes(node)) return first;
  ByteClasses& known = classes_of(language);
  if (known.of[byte] != 0) return known.classes[known.of[byte] - 1u].bytes;
  const ByteSet found = find_alike(language, byte);
  ByteClasses& classes = classes_of(language);
  constexpr std::size_t kMostClasses = 255;
  if (classes.classes.size() == kMostClasses) return found;
  classes.classes.push_back({found});
  const auto place = static_cast<std::uint8_t>(classes.classes.size());
  found.for_each([&](unsigned each) { classes.of[each] = place; });
  return found;
}

ByteSet Languages::find_alike(Language language, std::uint8_t byte) {
  const Node node = nodes_[language];
  switch (node.kind) {
    case Kind::concat:
      return nodes_[node.a].nullable ? alike(node.a, byte) & alike(node.b, byte) : alike(node.a, byte);
    case Kind::any_of:
    case Kind::all_of: {
      ByteSet all = ByteSet::range(0, 255);
      for (std::uint32_t i = 0; i < node.b && all.count() > 1; ++i)
        all = all & alike(lists_[node.a + i], byte);
      return all;
    }
    case Kind::except:
    case Kind::repeat: return alike(node.a, byte);
    default: return ByteSet::range(byte, byte);
  }
}

// A lower bound, by which a search for a text knows where to look first.
std::uint32_t Languages::least_length_of(const Node& node) const {
  constexpr std::uint64_t kMost = 0xFFFFFF;
  std::uint64_t least = 0;
  switch (node.kind) {
    case Kind::nothing: return kMost;
    case Kind::bytes: return 1;
    case Kind::concat: least = std::uint64_t{least_length_[node.a]} + least_length_[node.b]; break;
    case Kind::any_of:
      least = kMost;
      for (const Language part : list(node)) least = std::min<std::uint64_t>(least, least_length_[part]);
      break;
    case Kind::all_of:
      for (const Language part : list(node)) least = std::max<std::uint64_t>(least, least_length_[part]);
      break;
    case Kind::repeat: least = std::uint64_t{least_length_[node.a]} * node.b; break;
    case Kind::empty_text:
    case Kind::except:
    case Kind::compared:
    case Kind::multiple: break;
  }
  return static_cast<std::uint32_t>(std::min(least, kMost));
}

bool Languages::is_empty(Language language) {
  if (emptiness_[language] != kUnknown) return emptiness_[language] == kIsEmpty;
  const Node node = nodes_[language];
  bool empty = false;
  if (node.nullable) {
    empty = false;
  } else if (node.kind == Kind::concat) {
    empty = is_empty(node.a) || is_empty(node.b);
  } else if (node.kind == Kind::any_of) {
    empty = true;
    for (std::uint32_t i = 0; i < node.b && empty; ++i) empty = is_empty(lists_[node.a + i]);
  } else if (node.kind == Kind::repeat) {
    empty = is_empty(node.a);
  } else {
    empty = !search_text(language);
  }
  emptiness_[language] = empty ? kIsEmpty : kIsNot;
  return empty;
}

// Derivatives are searched for one that has the empty text, those first from which it seems nearest.
bool Languages::search_text(Language language) {
  std::vector<Language> found{language};
  std::vector<std::uint32_t> parent{0};
  WordMap seen;
  seen.at(language) = 1;
  using Open = std::pair<std::uint32_t, std::uint32_t>;  // least length, place in `found`
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
  open.emplace(0, 0);
  while (!open.empty()) {
    const std::uint32_t at = open.top().second;
    open.pop();
    ByteSet left = first_[found[at]];
    while (!left.empty()) {
      const auto byte = static_cast<std::uint8_t>(left.first());
      left = left & ~alike(found[at], byte);
      const Language next = derivative(found[at], byte);
      if (next == kNothing || emptiness_[next] == kIsEmpty) continue;
      std::uint32_t& mark = seen.at(next);
      if (mark != kUnbounded) continue;
      mark = 1;
      found.push_back(next);
      parent.push_back(at);
      if (nodes_[next].nullable || emptiness_[next] == kIsNot || found.size() > kEffort) {
        for (std::size_t up = found.size() - 1; up != 0; up = parent[up]) emptiness_[found[up]] = kIsNot;
        return true;
      }
      open.emplace(least_length_[next], static_cast<std::uint32_t>(found.size() - 1));
    }
  }
  for (const Language each : found) emptiness_[each] = kIsEmpty;
  return false;
}

std::uint32_t Languages::choices(Language language) const {
  if (language == kNothing) return 0;
  return nodes_[language].kind == Kind::any_of ? nodes_[language].b : 1;
}

// Only derivatives that have texts are followed, so one that leads back to itself has no end of them.
std::uint32_t Languages::count_texts(Language language, std::uint32_t most) {
  constexpr std::uint32_t kOpen = kUnbounded - 1;
  struct Open {
    Language at;
    std::uint32_t times;  // bytes that lead here
    ByteSet left;
    std::uint64_t texts;
  };
  if (most == 0 || is_empty(language)) return 0;
  WordMap known;
  std::vector<Open> path{{language, 1, first_[language], has_empty_text(language)}};
  known.at(language) = kOpen;
  while (true) {
    Open& top = path.back();
    if (top.texts >= most || known.size() > kEffort) return most;
    if (top.left.empty()) {
      const Open done = top;
      known.at(done.at) = static_cast<std::uint32_t>(done.texts);
      path.pop_back();
      if (path.empty()) return static_cast<std::uint32_t>(done.texts);
      path.back().texts += done.texts * done.times;
      continue;
    }
    const auto byte = static_cast<std::uint8_t>(top.left.first());
    const ByteSet same = top.left & alike(top.at, byte);
    top.left = top.left & ~same;
    const Language next = derivative(top.at, byte);
    if (next == kNothing || is_empty(next)) continue;
    const std::uint32_t times = same.count();
    const std::uint32_t texts = known.at(next);
    if (texts == kOpen) return most;
    if (texts != kUnbounded) {
      top.texts += std::uint64_t{texts} * times;
      continue;
    }
    known.at(next) = kOpen;
    path.push_back({next, times, first_[next], has_empty_text(next)});
  }
}

void Languages::add_plain_character(Language character) {
  if (std::find(plain_characters_.begin(), plain_characters_.end(), character) == plain_characters_.end())
    plain_characters_.push_back(character);
}

}  // namespace nibble
