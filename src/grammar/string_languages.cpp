// Languages of strings: what one character leads to, and which strings are others' parts.
#include <algorithm>

#include "grammar/languages.h"

namespace nibble {
namespace {

constexpr std::uint32_t kDiffers = kUnbounded - 1;
// Of a sequence, before it is left as it is.
constexpr int kMostParts = 256;

// Whether characters of two bytes and more are among those that a text begins with.
bool begins_long(const ByteSet& first) { return first.words[3] != 0; }

}  // namespace

std::optional<Language> Languages::behind_long(Language language, LongCharacters kind) {
  const std::uint32_t found = find_behind_long(language, kind);
  return found == kDiffers ? std::nullopt : std::optional(found);
}

std::uint32_t Languages::find_behind_long(Language language, LongCharacters kind) {
  const std::uint64_t key = std::uint64_t{language} << 1 | (kind == LongCharacters::blanks);
  if (const std::uint32_t known = behind_long_.at(key); known != kUnbounded) return known;
  const Node node = nodes_[language];  // a copy: nodes_ grows below
  if (!begins_long(first_[language])) return kNothing;
  std::uint32_t found = kDiffers;
  // Of these, what stands behind a text is made of what stands behind it in their parts.
  if (node.kind == Kind::any_of || node.kind == Kind::all_of) {
    std::vector<Language> parts(list(node).begin(), list(node).end());
    bool differ = false;
    for (Language& part : parts) {
      part = find_behind_long(part, kind);
      differ |= part == kDiffers;
      if (differ) break;
    }
    if (!differ) found = node.kind == Kind::any_of ? any_of(parts) : all_of(parts);
  } else if (node.kind == Kind::except) {
    const std::uint32_t inner = find_behind_long(node.a, kind);
    if (inner != kDiffers) found = except(inner);
  } else if (node.kind == Kind::repeat || node.kind == Kind::concat) {
    found = behind_long_string(language, kind);
  }
  if (found == kDiffers) found = follow_long(language, kind);
  behind_long_.at(key) = found;
  return found;
}

// Of strings, and of what stands behind them. No character begins another one, so a string does not end
// inside the one that is read.
std::uint32_t Languages::behind_long_string(Language language, LongCharacters kind) {
  const Node node = nodes_[language];  // a copy: nodes_ grows below
  const auto is_string = [this, part = node.a](Language character) { return is_string_of(part, character); };
  if (std::ranges::none_of(plain_characters_, is_string)) return kDiffers;
  const std::uint32_t behind = find_behind_long(node.a, kind);
  if (behind == kDiffers) return kDiffers;
  if (node.kind == Kind::repeat) {
    const std::uint32_t most = node.c == kUnbounded ? kUnbounded : node.c - 1;
    return concat(behind, repeat(node.a, node.b == 0 ? 0 : node.b - 1, most));
  }
  const Language first = concat(behind, node.b);
  if (!nodes_[node.a].nullable) return first;
  const std::uint32_t rest = find_behind_long(node.b, kind);
  return rest == kDiffers ? kDiffers : any_of({first, rest});
}

// Byte by byte through all characters of the kind.
std::uint32_t Languages::follow_long(Language language, LongCharacters kind) {
  std::uint32_t found = kUnbounded;
  for (const LongRange& range : long_ranges(kind)) {
    std::vector<Language> at{language};
    for (std::size_t i = 0; i < range.size; ++i) {
      std::vector<Language> next;
      for (const Language each : at) {
        ByteSet left = ByteSet::range(range.bytes[i].first, range.bytes[i].last);
        while (!left.empty()) {
          const auto byte = static_cast<std::uint8_t>(left.first());
          left = left & ~alike(each, byte);
          const Language behind = derivative(each, byte);
          if (std::ranges::find(next, behind) == next.end()) next.push_back(behind);
        }
      }
      at.swap(next);
    }
    if (at.size() > 1 || (found != kUnbounded && found != at.front())) return kDiffers;
    found = at.front();
  }
  return found;
}

bool Languages::is_any_string(Language language) const {
  const Node& node = nodes_[language];
  return node.kind == Kind::repeat && node.b == 0 && node.c == kUnbounded &&
         std::ranges::find(plain_characters_, node.a) != plain_characters_.end();
}

// Whether it is made of bytes, in sequences and choices alone.
bool Languages::is_character(Language language) const {
  const Node* node = &nodes_[language];
  for (; node->kind == Kind::concat; node = &nodes_[node->b])
    if (nodes_[node->a].kind != Kind::bytes) return false;
  if (node->kind == Kind::bytes) return true;
  return node->kind == Kind::any_of &&
         std::ranges::all_of(list(*node), [this](Language part) { return is_character(part); });
}

// Whether every text is one of such characters, none or many. No: or not known.
bool Languages::is_string_of(Language language, Language character) {
  if (language == character || language == kEmptyText || language == kNothing) return true;
  const Node node = nodes_[language];
  switch (node.kind) {
    case Kind::repeat: return is_string_of(node.a, character);
    case Kind::concat:
    case Kind::bytes:
    case Kind::any_of:
    case Kind::all_of: break;
    default: return false;
  }
  const std::uint64_t key = std::uint64_t{language} << 32 | character;
  if (const std::uint32_t known = strings_of_.at(key); known != kUnbounded) return known != 0;
  const auto is_one = [&](Language part) { return is_string_of(part, character); };
  bool found = false;
  if (is_character(language)) {
    found = is_empty(all_of({language, except(character)}));
  } else if (node.kind == Kind::concat) {
    found = is_one(node.a) && is_one(node.b);
  } else if (node.kind != Kind::bytes) {
    const std::vector<Language> parts(list(node).begin(), list(node).end());
    found =
        node.kind == Kind::any_of ? std::ranges::all_of(parts, is_one) : std::ranges::any_of(parts, is_one);
  }
  strings_of_.at(key) = found;
  return found;
}

// Beside all strings, and what may stand behind them, those that hold something need not be chosen.
void Languages::drop_within(std::vector<Language>& choices) {
  for (const Language all : choices) {
    const Node node = nodes_[all];
    const bool sequence = node.kind == Kind::concat;
    const Language strings = sequence ? node.a : all;
    if (!is_any_string(strings)) continue;
    const Language character = nodes_[strings].a, behind = sequence ? node.b : kEmptyText;
    std::erase_if(choices, [&, wide = all](Language choice) {
      if (choice == wide) return false;
      Language rest = choice;
      for (int parts = 0; rest != wide && rest != behind; ++parts) {
        if (parts == kMostParts) return false;
        const Node each = nodes_[rest];
        const bool last = each.kind != Kind::concat;
        if (!is_string_of(last ? rest : each.a, character)) return false;
        rest = last ? kEmptyText : each.b;
        if (last && rest != behind) return false;
      }
      return true;
    });
    return;
  }
}

// Given texts without those of them that must not be are given texts; false where none is left.
bool Languages::drop_given(std::vector<Language>& parts) {
  const auto is_given = [this](Language part) { return nodes_[part].given; };
  const auto excludes = [&](Language part) {
    return nodes_[part].kind == Kind::except && is_given(nodes_[part].a);
  };
  const auto texts = std::ranges::find_if(parts, is_given);
  if (texts == parts.end() || std::ranges::none_of(parts, excludes)) return true;
  const auto texts_of = [this](Language given) {
    if (nodes_[given].kind != Kind::any_of) return std::vector{given};
    return std::vector<Language>(list(nodes_[given]).begin(), list(nodes_[given]).end());
  };
  std::vector<Language> left = texts_of(*texts);
  for (const Language part : parts) {
    if (!excludes(part)) continue;
    const std::vector<Language> out = texts_of(nodes_[part].a);
    std::erase_if(left, [&](Language text) { return std::ranges::binary_search(out, text); });
  }
  if (left.empty()) return false;
  *texts = any_of(left);
  std::erase_if(parts, excludes);
  std::ranges::sort(parts);
  return true;
}

// Beside strings of some kind all strings say nothing, and none but those leave nothing: then false.
bool Languages::drop_around(std::vector<Language>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Node node = nodes_[parts[i]];
    const bool none = node.kind == Kind::except && is_any_string(node.a);
    if (!none && !is_any_string(parts[i])) continue;
    const Language character = none ? nodes_[node.a].a : node.a;
    const auto within = [&](Language part) { return part != parts[i] && is_string_of(part, character); };
    if (std::ranges::none_of(parts, within)) continue;
    if (none) return false;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i--));
  }
  return true;
}

PlainPrefix Languages::plain_prefix(Language language) {
  const Node node = nodes_[language];  // a copy: nodes_ may grow below
  switch (node.kind) {
    case Kind::nothing:
    case Kind::empty_text: return {0, true};
    case Kind::bytes: {
      // Of the bytes that begin no plain character, those that matter: a string's end and escapes.
      ByteSet plain = sets_[node.a];
      plain.remove('"');
      plain.remove('\\');
      for (unsigned byte = 0; byte < 0x20; ++byte) plain.remove(byte);
      return {0, plain.empty()};
    }
    case Kind::repeat:
      if (std::find(plain_characters_.begin(), plain_characters_.end(), node.a) == plain_characters_.end())
        return {};
      return {node.c, true, node.b == 0};
    case Kind::concat: {
      PlainPrefix first = plain_prefix(node.a);
      if (nodes_[node.a].kind == Kind::bytes) return first;
      const PlainPrefix rest = plain_prefix(node.b);
      first.ends = first.ends && rest.ends && rest.length == 0;
      first.uniform = first.uniform && first.ends;
      if (first.length == kUnbounded && is_empty(node.b)) first.length = 0;
      return first;
    }
    case Kind::all_of: return {.length = goes_on(language) == GoesOn::unknown ? 0 : kUnbounded};
    case Kind::any_of: {
      PlainPrefix all{0, true};
      for (std::uint32_t i = 0; i < node.b; ++i) {
        const PlainPrefix each = plain_prefix(lists_[node.a + i]);
        all.length = std::max(all.length, each.length);
        all.ends &= each.ends;
      }
      return all;
    }
    default: return {};
  }
}

Languages::GoesOn Languages::goes_on(Language language) {
  if (const std::uint32_t known = goes_on_.at(language); known != kUnbounded)
    return static_cast<GoesOn>(known);
  const GoesOn found = find_goes_on(language);
  goes_on_.at(language) = static_cast<std::uint32_t>(found);
  return found;
}

Languages::GoesOn Languages::find_goes_on(Language language) {
  const Node node = nodes_[language];  // a copy: nodes_ may grow below
  const auto is_string = [this](Language part) {
    return std::ranges::all_of(plain_characters_, [&](Language each) { return is_string_of(part, each); });
  };
  const auto is_plain_character = [this](Language part) {
    return std::ranges::find(plain_characters_, part) != plain_characters_.end();
  };
  switch (node.kind) {
    case Kind::repeat:
      return node.c == kUnbounded && is_plain_character(node.a) ? GoesOn::settled : GoesOn::unknown;
    // Longer texts than those that are left out may go on with anything.
    case Kind::except: return nodes_[node.a].given ? GoesOn::settled : GoesOn::unknown;
    case Kind::concat: {
      if (!is_any_string(node.a) || !is_string(node.b) || is_empty(node.b)) return GoesOn::unknown;
      Language last = node.b;
      while (nodes_[last].kind == Kind::concat) last = nodes_[last].b;
      return is_any_string(last) ? GoesOn::settled : GoesOn::reachable;
    }
    case Kind::any_of: {
      GoesOn best = GoesOn::unknown;
      for (std::uint32_t i = 0; i < node.b; ++i) best = std::max(best, goes_on(lists_[node.a + i]));
      return best;
    }
    // All that settle are settled one behind the other, and then one more is reached.
    case Kind::all_of: {
      std::uint32_t unsettled = 0;
      for (std::uint32_t i = 0; i < node.b; ++i) {
        const GoesOn each = goes_on(lists_[node.a + i]);
        if (each == GoesOn::unknown) return GoesOn::unknown;
        unsettled += each == GoesOn::reachable;
      }
      return unsettled == 0 ? GoesOn::settled : unsettled == 1 ? GoesOn::reachable : GoesOn::unknown;
    }
    default: return GoesOn::unknown;
  }
}

}  // namespace nibble
