// Languages that count, far from the end of their counts: what no text of some bytes can tell apart.
#include <algorithm>
#include <bit>

#include "grammar/languages.h"

namespace nibble {
namespace {

// States that are looked at for the length of a text's rest.
constexpr std::size_t kMostStates = 400;

}  // namespace

Language Languages::recounted(Language language, Counts counts) {
  if (!nodes_[language].counts) return language;
  WordMap& known = recounted_[static_cast<std::size_t>(counts)];
  if (const std::uint32_t made = known.at(language); made != kUnbounded) return made;
  // A sequence may be long, so its parts are gone through in a loop.
  std::vector<Language> parts;
  Language rest = language;
  for (; nodes_[rest].kind == Kind::concat; rest = nodes_[rest].b) parts.push_back(nodes_[rest].a);
  parts.push_back(rest);
  Language made = kEmptyText;
  for (std::size_t i = parts.size(); i-- > 0;) made = concat(part_recounted(parts[i], counts), made);
  recounted_[static_cast<std::size_t>(counts)].at(language) = made;
  return made;
}

Language Languages::part_recounted(Language part, Counts counts) {
  if (!nodes_[part].counts) return part;
  const Node node = nodes_[part];
  switch (node.kind) {
    case Kind::any_of:
    case Kind::all_of: {
      std::vector<Language> parts(list(node).begin(), list(node).end());
      for (Language& each : parts) each = recounted(each, counts);
      return node.kind == Kind::any_of ? any_of(parts) : all_of(parts);
    }
    case Kind::repeat: {
      const Language each = recounted(node.a, counts);
      if (!many_times(node.c)) return repeat(each, node.b, node.c);
      return repeat(each, node.b,
                    counts == Counts::endless ? kUnbounded : std::max(node.b, std::bit_floor(node.c)));
    }
    default: return part;
  }
}

std::uint32_t Languages::bytes_counted(Language language) {
  constexpr std::uint64_t kMost = 0xFFFFFF;
  if (!nodes_[language].counts) return kMost;
  if (const std::uint32_t known = bytes_counted_.at(language); known != kUnbounded) return known;
  std::uint64_t least = kMost;
  const auto look_at = [&](Language part) {
    const Node node = nodes_[part];
    if (node.kind == Kind::any_of || node.kind == Kind::all_of) {
      for (std::uint32_t i = 0; i < node.b; ++i)
        least = std::min<std::uint64_t>(least, bytes_counted(lists_[node.a + i]));
    } else if (node.kind == Kind::repeat) {
      least = std::min<std::uint64_t>(least, bytes_counted(node.a));
      if (many_times(node.c))
        least = std::min(least, std::uint64_t{node.c} * std::max(least_length_[node.a], 1u));
    }
  };
  Language rest = language;
  for (; nodes_[rest].kind == Kind::concat; rest = nodes_[rest].b) look_at(nodes_[rest].a);
  look_at(rest);
  bytes_counted_.at(language) = static_cast<std::uint32_t>(least);
  return static_cast<std::uint32_t>(least);
}

std::uint32_t Languages::longest_rest(Language language) {
  if (const std::uint32_t known = longest_rest_.at(language); known != kUnbounded) return known;
  const Node node = nodes_[language];
  if (node.plain) {
    const std::uint32_t longest = longest_plain_rest(language);
    longest_rest_.at(language) = longest;
    return longest;
  }
  if (node.kind == Kind::concat && nodes_[node.b].plain) {
    const std::uint64_t first = std::uint64_t{longest_rest(node.a)} + least_length_[node.b];
    const std::uint64_t longest = std::max<std::uint64_t>(first, longest_rest(node.b));
    longest_rest_.at(language) = static_cast<std::uint32_t>(std::min<std::uint64_t>(longest, kUnbounded - 1));
    return longest_rest_.at(language);
  }
  // A pattern's texts are made of the characters of strings.
  if (node.kind == Kind::all_of && node.b == 2) {
    const Language one = lists_[node.a], other = lists_[node.a + 1];
    if (is_any_string(one) && nodes_[other].plain) return longest_rest(other);
    if (is_any_string(other) && nodes_[one].plain) return longest_rest(one);
  }
  return longest_found_rest(language);
}

// Whatever part of it a text has come to, and before it has begun.
std::uint32_t Languages::longest_plain_rest(Language language) {
  constexpr std::uint64_t kMost = 0xFFFFFF;
  const auto part_rest = [&](Language part) -> std::uint64_t {
    const Node node = nodes_[part];
    switch (node.kind) {
      case Kind::bytes: return 1;
      case Kind::any_of: {
        std::uint32_t longest = 0;
        for (std::uint32_t i = 0; i < node.b; ++i)
          longest = std::max(longest, longest_rest(lists_[node.a + i]));
        return longest;
      }
      case Kind::repeat:
        return longest_rest(node.a) + std::uint64_t{node.b == 0 ? 0 : node.b - 1} * least_length_[node.a];
      default: return 0;
    }
  };
  std::uint64_t longest = 0;
  Language rest = language;
  for (; nodes_[rest].kind == Kind::concat; rest = nodes_[rest].b)
    longest = std::max(longest, part_rest(nodes_[rest].a) + least_length_[nodes_[rest].b]);
  return static_cast<std::uint32_t>(std::min(std::max(longest, part_rest(rest)), kMost));
}

// Of any language: looks at what stands behind each of its beginnings.
std::uint32_t Languages::longest_found_rest(Language language) {
  std::vector<Language> found{language};
  std::vector<std::vector<std::uint32_t>> before(1);  // [found] from where a byte leads there
  WordMap places;
  places.at(language) = 0;
  constexpr std::uint32_t kTooFar = kUnbounded - 1;
  std::uint32_t longest = 0;
  for (std::size_t at = 0; at < found.size() && longest != kTooFar; ++at) {
    ByteSet left = first_[found[at]];
    while (!left.empty()) {
      const auto byte = static_cast<std::uint8_t>(left.first());
      left = left & ~alike(found[at], byte);
      const Language next = derivative(found[at], byte);
      if (next == kNothing || is_empty(next)) continue;
      std::uint32_t& place = places.at(next);
      if (place == kUnbounded) {
        place = static_cast<std::uint32_t>(found.size());
        found.push_back(next);
        before.emplace_back();
      }
      before[place].push_back(static_cast<std::uint32_t>(at));
    }
    if (found.size() > kMostStates) longest = kTooFar;
  }
  if (longest != kTooFar) {
    std::vector<std::uint32_t> open;
    std::vector<bool> reached(found.size());
    for (std::uint32_t at = 0; at < found.size(); ++at) {
      if (!nodes_[found[at]].nullable) continue;
      reached[at] = true;
      open.push_back(at);
    }
    std::size_t ends = open.size();
    while (!open.empty()) {
      std::vector<std::uint32_t> next;
      for (const std::uint32_t at : open)
        for (const std::uint32_t from : before[at])
          if (!reached[from]) {
            reached[from] = true;
            next.push_back(from);
          }
      ends += next.size();
      longest += !next.empty();
      open.swap(next);
    }
    if (ends < found.size()) longest = kTooFar;
  }
  // What stands behind has no longer rests.
  for (const Language each : found) longest_rest_.at(each) = longest;
  return longest;
}

}  // namespace nibble
