// A compiled grammar: symbols whose leaves are regular languages. Objects and arrays are symbols of their
// own, so that a hundred optional members cost a hundred members and not the ways to choose among them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "grammar/compile_clock.h"
#include "grammar/languages.h"

namespace nibble {

using SymbolId = std::uint32_t;
inline constexpr SymbolId kNoSymbol = 0xFFFFFFFF;

struct Symbol {
  enum class Kind : std::uint8_t {
    text,       // a: Language
    sequence,   // a, b: parts [a, a + b) in Symbols::parts
    choice,     // the same
    repeat,     // a: symbol; b, c: least and most times
    object,     // a: in Symbols::objects
    array,      // a: in Symbols::arrays
    undefined,  // a rule that is being read
  };
  Kind kind = Kind::undefined;
  std::uint32_t a = 0, b = 0, c = 0;
};

// Some of the things that an object is asked for, a bit each.
using AskedSet = std::uint32_t;
inline constexpr std::uint32_t kMostAsked = 3;
inline constexpr std::uint32_t kMostCountedBesideAsked = 0x1FFF;
// [members + 1][sets] how many members must come, from that one on and beside those that are required, for
// all things of the set to be there; kUnbounded: no number is enough.
using AskedNeeds = std::vector<std::array<std::uint32_t, 1u << kMostAsked>>;

// Of an object each of some things comes at least once: a member that is one or several of them, with another
// value, or one of other others, whose names do not come again. Each name has one spelling then, and each
// other has as many names as there are things.
struct AskedMembers {
  struct Other {
    Language key = kNothing;
    SymbolId value = kNoSymbol;
    AskedSet as = 0;
  };
  std::uint32_t things = 0;
  std::vector<SymbolId> values;  // [members, sets but the empty one] kNoSymbol where there is none
  std::vector<Other> others;
  AskedSet all() const { return (1u << things) - 1; }
  SymbolId value(std::size_t member, AskedSet as) const { return values[member * all() + as - 1]; }
};

// Members come in the order of `members`; those of `others` come anywhere, any number of times.
struct ObjectShape {
  struct Member {
    Language key = kNothing;  // in its quotes
    SymbolId value = kNoSymbol;
    bool required = false;
    std::uint32_t names = kUnbounded;  // that the key can be, where `distinct` asks for a number
  };
  std::vector<Member> members;
  std::vector<Member> others;
  Language open = kNothing;
  Language before_first = kNothing;
  Language comma = kNothing;
  Language colon = kNothing;
  Language close = kNothing;
  std::uint32_t least = 0, most = kUnbounded;
  // No member of `others` comes twice before there are `least` members. Each name has one spelling then.
  bool distinct = false;
  std::optional<AskedMembers> asked;  // not beside `distinct`
  // `usable` are the symbols that have texts.
  AskedNeeds asked_needs(const std::vector<bool>& usable) const;
};

// Elements that are counted as some things, so many of each.
struct CountedElements {
  struct Thing {
    std::uint32_t least = 0, most = kUnbounded;
    // More make no difference, or are too many.
    std::uint32_t last() const { return most != kUnbounded ? most : least; }
  };
  struct Element {
    std::vector<SymbolId> first;
    SymbolId rest = kNoSymbol;
    SymbolId at(std::uint32_t place) const { return place < first.size() ? first[place] : rest; }
  };
  std::vector<Thing> things;
  std::vector<Element> as;  // [sets of things, a bit each]

  // How many of each have been found is one number below this one.
  std::uint32_t numbers() const;
  // With an element more that is all things of the set; nothing where one of them is no longer counted.
  std::optional<std::uint32_t> with(std::uint32_t found, std::uint32_t set) const;
  bool is_enough(std::uint32_t found) const;
};

struct ArrayShape {
  std::vector<SymbolId> first;  // of the first elements
  SymbolId rest = kNoSymbol;    // of those behind them; none may come where it is kNoSymbol
  Language open = kNothing;
  Language before_first = kNothing;
  Language comma = kNothing;
  Language close = kNothing;
  std::uint32_t least = 0, most = kUnbounded;
  // No element comes twice: all are `rest`, a text in which each value has one spelling.
  bool distinct = false;

  std::optional<CountedElements> counted;
  // Whether so many elements, of which so many were counted, can be the beginning of an array.
  bool can_end(std::uint32_t count, std::uint32_t found, const std::vector<bool>& usable) const;
};

struct Symbols {
  Languages languages;
  std::vector<Symbol> symbols;
  std::vector<SymbolId> parts;
  std::vector<ObjectShape> objects;
  std::vector<ArrayShape> arrays;
  SymbolId root = kNoSymbol;

  SymbolId add(const Symbol& symbol);
  SymbolId text(Language language);
  // One of texts stays a text: the language of all of them.
  SymbolId sequence(std::span<const SymbolId> of);
  SymbolId choice(std::span<const SymbolId> of);
  SymbolId repeat(SymbolId part, std::uint32_t least, std::uint32_t most);
  // Of a sequence or a choice.
  std::span<const SymbolId> parts_of(const Symbol& symbol) const {
    return std::span<const SymbolId>(parts).subspan(symbol.a, symbol.b);
  }
  bool is_text(SymbolId symbol) const { return symbols[symbol].kind == Symbol::Kind::text; }

  // Which symbols have a text at all, and which have the empty one.
  Result<std::vector<bool>> productive(const CompileClock& clock);
  Result<std::vector<bool>> nullable(const CompileClock& clock);
};

}  // namespace nibble
