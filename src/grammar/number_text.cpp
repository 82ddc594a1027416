#include "grammar/number_text.h"

#include <array>
#include <charconv>

namespace nibble {
namespace {

struct Sides {
  std::vector<Language> positive, negative;  // conditions on the digits
  bool any_positive = true, any_negative = true;
};

bool is_zero(std::string_view digits) { return digits.find_first_not_of("0.") == std::string_view::npos; }

Languages::Equal equal_of(const NumberLimit& limit) {
  return limit.or_equal ? Languages::Equal::included : Languages::Equal::excluded;
}

void add_limit(Languages& languages, const NumberLimit& limit, Sides& sides) {
  const bool below = limit.number.starts_with('-');
  const std::string_view digits = std::string_view(limit.number).substr(below);
  const bool zero = is_zero(digits);
  if (limit.at_most == (below || (zero && !limit.or_equal))) {
    // At most a number below zero, or at least one above it: one side is out, the other is cut towards zero.
    auto& open = limit.at_most ? sides.negative : sides.positive;
    (limit.at_most ? sides.any_positive : sides.any_negative) = false;
    if (!(zero && limit.or_equal))
      open.push_back(languages.compared(digits, Languages::Than::greater, equal_of(limit)));
    return;
  }
  // The limit is on the side that it cuts away from zero.
  auto& cut = limit.at_most ? sides.positive : sides.negative;
  if (!limit.at_most && zero && !limit.or_equal) {
    sides.any_negative = false;
    sides.positive.push_back(
        languages.compared(digits, Languages::Than::greater, Languages::Equal::excluded));
    return;
  }
  cut.push_back(languages.compared(digits, Languages::Than::less, equal_of(limit)));
}

}  // namespace

Language numbers(Languages& languages, const NumberFacts& facts) {
  const Language digit = languages.bytes(ByteSet::range('0', '9'));
  const Language digits = languages.repeat(digit, 0, kUnbounded);
  const Language whole = languages.any_of(
      {languages.literal("0"), languages.concat(languages.bytes(ByteSet::range('1', '9')), digits)});
  const Language point = languages.literal(".");
  const Language fraction = languages.repeat(languages.concat({point, digit, digits}), 0, 1);
  const auto set = [&](std::string_view bytes) {
    ByteSet made;
    for (const char byte : bytes) made.add(static_cast<unsigned char>(byte));
    return languages.bytes(made);
  };
  const Language exponent =
      languages.repeat(languages.concat({set("eE"), languages.repeat(set("+-"), 0, 1), digit, digits}), 0, 1);

  Sides sides;
  for (const NumberLimit& limit : facts.limits) add_limit(languages, limit, sides);
  for (const auto& multiple : facts.multiples) {
    Language of = languages.multiple_of(multiple.unit, multiple.digits);
    if (multiple.not_of) of = languages.except(of);
    sides.positive.push_back(of);
    sides.negative.push_back(of);
  }
  const auto side = [&](std::vector<Language> conditions) {
    Language form = whole;
    if (facts.fractions) {
      form = languages.concat(whole, fraction);
      if (!facts.integers) {
        const Language zeros = languages.repeat(languages.literal("0"), 0, kUnbounded);
        form = languages.all_of({form, languages.except(languages.concat(
                                           whole, languages.repeat(languages.concat(point, zeros), 0, 1)))});
      } else if (conditions.empty() && !facts.plain_decimals) {
        form = languages.concat(form, exponent);
      }
    }
    conditions.push_back(form);
    return languages.all_of(conditions);
  };
  std::vector<Language> all;
  if (sides.any_positive) all.push_back(side(sides.positive));
  if (sides.any_negative) all.push_back(languages.concat(languages.literal("-"), side(sides.negative)));
  return languages.any_of(all);
}

std::string decimal_of(JsonValue number) {
  if (number.is_integer()) return std::to_string(number.as_integer());
  std::array<char, 1200> text;
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), number.as_double(), std::chars_format::fixed);
  return error == std::errc() ? std::string(text.data(), end) : std::string();
}

std::optional<NumberFacts::Multiple> multiple_of(JsonValue number) {
  const std::string text = decimal_of(number);
  if (text.empty() || text.front() == '-' || text.size() > 18) return std::nullopt;
  NumberFacts::Multiple made{0, 0};
  bool behind = false;
  for (const char c : text) {
    if (c == '.') {
      behind = true;
      continue;
    }
    made.unit = made.unit * 10 + static_cast<std::uint64_t>(c - '0');
    made.digits += behind;
  }
  while (made.digits > 0 && made.unit % 10 == 0 && made.unit > 0) made.unit /= 10, --made.digits;
  if (made.unit == 0 || made.unit >= (std::uint64_t{1} << 31)) return std::nullopt;
  return made;
}

}  // namespace nibble
