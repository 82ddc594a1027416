// Languages of decimal numbers, read digit by digit: those on one side of a limit, and the multiples of a
// unit.
#include <algorithm>
#include <utility>

#include "grammar/languages.h"

namespace nibble {
namespace {

// What Kind::compared keeps in c: how the digits read so far compare with the limit's, and whether the point
// has been read.
constexpr std::uint32_t kEqualSoFar = 0, kLess = 1, kGreater = 2, kAfterPoint = 4;

std::pair<std::string, std::string> decimal_parts(std::string_view number) {
  const std::size_t point = std::min(number.find('.'), number.size());
  std::string whole(number.substr(0, point));
  std::string fraction(number.substr(std::min(point + 1, number.size())));
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  if (whole.empty()) whole = "0";
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  return {whole, fraction};
}

}  // namespace

Language Languages::compared(std::string_view limit, Than than, Equal equal) {
  const bool at_most = than == Than::less, or_equal = equal == Equal::included;
  auto [whole, fraction] = decimal_parts(limit);
  const Limit wanted{std::move(whole), std::move(fraction), at_most, or_equal};
  auto at = std::find(limits_.begin(), limits_.end(), wanted);
  if (at == limits_.end()) at = limits_.insert(limits_.end(), wanted);
  Node node{.kind = Kind::compared, .plain = false, .a = static_cast<std::uint32_t>(at - limits_.begin())};
  node.nullable = nullable_compared(node);
  return intern(node);
}

bool Languages::nullable_compared(const Node& node) const {
  const Limit& limit = limits_[node.a];
  std::uint32_t relation = node.c & 3;
  if (!(node.c & kAfterPoint)) {
    if (node.b == 0) return false;
    if (node.b < limit.whole.size()) relation = kLess;
    if (relation == kEqualSoFar && !limit.fraction.empty()) relation = kLess;
  } else if (relation == kEqualSoFar && node.b < limit.fraction.size()) {
    relation = kLess;
  }
  if (relation == kEqualSoFar) return limit.or_equal;
  return (relation == kLess) == limit.at_most;
}

Language Languages::derive_compared(Node node, std::uint8_t byte) {
  const Limit& limit = limits_[node.a];
  std::uint32_t relation = node.c & 3;
  if (byte == '.' && !(node.c & kAfterPoint)) {
    if (node.b == 0) return kNothing;
    if (node.b < limit.whole.size()) relation = kLess;
    node.c = relation | kAfterPoint;
    node.b = 0;
  } else if (byte >= '0' && byte <= '9') {
    const bool fraction = node.c & kAfterPoint;
    const std::string& digits = fraction ? limit.fraction : limit.whole;
    if (node.b < digits.size()) {
      const auto digit = static_cast<std::uint8_t>(digits[node.b]);
      if (relation == kEqualSoFar && byte != digit) relation = byte < digit ? kLess : kGreater;
      ++node.b;
    } else if (!fraction) {
      relation = kGreater;  // more digits than the limit has
    } else if (relation == kEqualSoFar && byte != '0') {
      relation = kGreater;
    }
    node.c = relation | (node.c & kAfterPoint);
  } else {
    return kNothing;
  }
  node.nullable = nullable_compared(node);
  return intern(node);
}

Language Languages::multiple_of(std::uint64_t unit, std::uint32_t digits) {
  const Unit wanted{unit, digits};
  auto at = std::find(units_.begin(), units_.end(), wanted);
  if (at == units_.end()) at = units_.insert(units_.end(), wanted);
  Node node{.kind = Kind::multiple, .plain = false, .a = static_cast<std::uint32_t>(at - units_.begin())};
  node.nullable = nullable_multiple(node);
  return intern(node);
}

// b is the number read so far modulo the unit; c is 0 before the point, else one more than the digits behind
// it.
bool Languages::nullable_multiple(const Node& node) const {
  const Unit& unit = units_[node.a];
  std::uint64_t rest = node.b;
  for (std::uint32_t digit = node.c == 0 ? 0 : node.c - 1; digit < unit.digits; ++digit)
    rest = rest * 10 % unit.unit;
  return rest == 0;
}

Language Languages::derive_multiple(Node node, std::uint8_t byte) {
  const Unit& unit = units_[node.a];
  if (byte == '.' && node.c == 0) {
    node.c = 1;
  } else if (byte >= '0' && byte <= '9') {
    const std::uint32_t digit = byte - '0';
    if (node.c == unit.digits + 1) {
      if (digit != 0) return kNothing;  // finer than the unit
    } else {
      node.b = static_cast<std::uint32_t>((node.b * std::uint64_t{10} + digit) % unit.unit);
      if (node.c > 0) ++node.c;
    }
  } else {
    return kNothing;
  }
  node.nullable = nullable_multiple(node);
  return intern(node);
}

}  // namespace nibble
