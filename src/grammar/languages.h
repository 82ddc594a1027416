// Regular languages of bytes as expressions that are stored once each, and their derivatives: what may follow
// a byte. Intersection and complement are expressions like any other, so that a key that is none of the
// declared ones, or a string that has a pattern and a length, is exact. An automaton is never built: of its
// states, which are the derivatives, only those exist that some text has reached.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/byte_set.h"
#include "grammar/long_characters.h"

namespace nibble {

// An expression, by its place in a Languages. Equal numbers mean equal languages.
using Language = std::uint32_t;

inline constexpr Language kNothing = 0;     // no text at all
inline constexpr Language kEmptyText = 1;   // the text of no bytes
inline constexpr Language kEverything = 2;  // every text
inline constexpr std::uint32_t kUnbounded = 0xFFFFFFFF;

// Keys and values are integers; the key of all ones is not allowed.
class WordMap {
 public:
  // The place of the key's value; kUnbounded if it was not there.
  std::uint32_t& at(std::uint64_t key);
  std::size_t size() const { return used_; }

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    std::uint32_t value = kUnbounded;
  };
  void grow();
  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

// What a language knows about texts of a JSON string's plain characters: those that stand for themselves.
struct PlainPrefix {
  std::uint32_t length = 0;  // every one of at most so many characters begins a text of the language
  bool ends = false;         // no longer one does
  // Behind any of them the language is what it was, but for the length: a string's inside without a pattern.
  bool uniform = false;
};

class Languages {
 public:
  Languages();

  Language bytes(const ByteSet& set);
  Language literal(std::string_view text);
  Language concat(Language first, Language second);
  Language concat(std::initializer_list<Language> parts);
  Language any_of(std::span<const Language> choices);
  Language any_of(std::initializer_list<Language> choices) {
    return any_of(std::span(choices.begin(), choices.size()));
  }
  Language all_of(std::span<const Language> parts);
  Language all_of(std::initializer_list<Language> parts) {
    return all_of(std::span(parts.begin(), parts.size()));
  }
  Language except(Language excluded);
  Language repeat(Language part, std::uint32_t least, std::uint32_t most);
  // Unsigned decimal numbers ("12", "0.50") at most, or at least, `limit`, itself an unsigned decimal number.
  // Texts that are no such numbers may or may not be among them: intersect with the numbers that are meant.
  enum class Than : std::uint8_t { less, greater };
  enum class Equal : bool { excluded, included };
  Language compared(std::string_view limit, Than than, Equal equal);
  // Unsigned decimal numbers that are a multiple of unit / 10^digits.
  Language multiple_of(std::uint64_t unit, std::uint32_t digits);

  Language derivative(Language language, std::uint8_t byte) {
    if (!first_[language].has(byte)) return kNothing;
    // Literals, most of what there is, need no memory of their derivatives.
    const Node& node = nodes_[language];
    if (node.kind == Kind::bytes) return kEmptyText;
    if (begins_with_bytes(node)) return node.b;
    return remembered_derivative(language, byte);
  }
  // No text begins with another byte; one may begin with each of these.
  const ByteSet& first_bytes(Language language) const { return first_[language]; }
  // Bytes that have the same derivative as this one, itself among them.
  ByteSet alike(Language language, std::uint8_t byte);
  bool has_empty_text(Language language) const { return nodes_[language].nullable; }
  // Whether there is no text in it, decided exactly unless it took `kEffort` states to find out.
  bool is_empty(Language language);

  // How many languages a choice is made of; of anything else 1, of kNothing 0.
  std::uint32_t choices(Language language) const;
  // How many texts a language has, but no more than `most`.
  std::uint32_t count_texts(Language language, std::uint32_t most);

  // Of counts of many times, {0,300}: what a language is without an end of them, or with rounder ones that
  // are no larger. Inside complements they stay as they are.
  enum class Counts : std::uint8_t { endless, rounded };
  Language recounted(Language language, Counts counts);
  // What stands behind a character of more than one byte, whichever of this kind it is; nothing where that
  // differs, or is not known to be one.
  std::optional<Language> behind_long(Language language, LongCharacters kind);
  bool counts(Language language) const { return nodes_[language].counts; }
  // Of texts of at most so many bytes, a language and the endless one have the same.
  std::uint32_t bytes_counted(Language language);
  // What begins a text of the language has a rest of at most so many bytes.
  std::uint32_t longest_rest(Language language);

  PlainPrefix plain_prefix(Language language);
  // An expression of one character, of which every plain one is a text.
  // Whether it is a choice of some texts.
  bool is_given_texts(Language language) const {
    return nodes_[language].given && nodes_[language].kind == Kind::any_of;
  }
  bool is_complement(Language language) const { return nodes_[language].kind == Kind::except; }
  void add_plain_character(Language character);

  std::size_t size() const { return nodes_.size(); }
  std::size_t memory() const;

 private:
  enum class Kind : std::uint8_t {
    nothing,
    empty_text,
    bytes,
    concat,
    any_of,
    all_of,
    except,
    repeat,
    compared,
    multiple
  };
  // a, b, c: bytes: set; concat: first, second; any_of, all_of: begin, count in lists_; except: a;
  // repeat: part, least, most; compared: limit, digits read, relation and place; multiple: unit, rest, digits
  // after the point.
  struct Node {
    Kind kind = Kind::nothing;
    bool nullable = false;
    bool plain = true;    // no intersection, complement or number inside: empty only if it is kNothing
    bool counts = false;  // something many times, and not inside a complement
    bool given = false;   // one text, or a choice of those
    std::uint32_t a = 0, b = 0, c = 0;
  };
  struct Limit {
    std::string whole, fraction;
    bool at_most = false, or_equal = false;
    bool operator==(const Limit&) const = default;
  };
  struct Unit {
    std::uint64_t unit = 1;
    std::uint32_t digits = 0;
    bool operator==(const Unit&) const = default;
  };
  // The bytes that lead from a language to one derivative; of them only those classes that were asked for.
  struct ByteClass {
    ByteSet bytes;
    Language derivative = kUnbounded;  // that where nobody asked
  };
  struct ByteClasses {
    std::array<std::uint8_t, 256> of = {};  // one more than a place in `classes`; 0 where nobody asked
    std::vector<ByteClass> classes;
  };
  static constexpr Language kAnyByte = 3;
  // Counts of fewer are never far from their end.
  static constexpr std::uint32_t kManyTimes = 16;
  static bool many_times(std::uint32_t most) { return most != kUnbounded && most >= kManyTimes; }
  enum Emptiness : std::uint8_t { kUnknown, kIsEmpty, kIsNot };
  std::uint64_t hash_of(const Node& node) const;
  Language append(const Node& node, std::size_t slot);
  Language intern(const Node& node);
  Language intern_list(Kind kind, std::span<const Language> parts);
  std::uint32_t intern_set(const ByteSet& set);
  bool same_list(const Node& node, std::span<const Language> parts) const;
  ByteSet first_of(const Node& node) const;
  bool begins_with_bytes(const Node& node) const {
    return node.kind == Kind::concat && nodes_[node.a].kind == Kind::bytes;
  }
  ByteClasses& classes_of(Language language);
  ByteSet find_alike(Language language, std::uint8_t byte);
  Language remembered_derivative(Language language, std::uint8_t byte);
  Language derive(Language language, std::uint8_t byte);
  Language derive_compared(Node node, std::uint8_t byte);
  Language derive_multiple(Node node, std::uint8_t byte);
  bool nullable_compared(const Node& node) const;
  bool nullable_multiple(const Node& node) const;
  std::uint32_t least_length_of(const Node& node) const;
  bool search_text(Language language);
  Language part_recounted(Language part, Counts counts);
  bool is_any_string(Language language) const;
  std::uint32_t find_behind_long(Language language, LongCharacters kind);
  std::uint32_t behind_long_string(Language language, LongCharacters kind);
  std::uint32_t follow_long(Language language, LongCharacters kind);
  // How texts of a string's characters go on to texts of a language. `reachable`: each does. `settled`: each
  // does with one behind which it does not matter what comes.
  enum class GoesOn : std::uint8_t { unknown, reachable, settled };
  GoesOn goes_on(Language language);
  GoesOn find_goes_on(Language language);
  bool is_character(Language language) const;
  bool is_string_of(Language language, Language character);
  void drop_within(std::vector<Language>& choices);
  bool drop_around(std::vector<Language>& parts);
  bool drop_given(std::vector<Language>& parts);
  bool is_one_byte(Language language) const {
    return nodes_[language].kind == Kind::bytes && sets_[nodes_[language].a].count() == 1;
  }
  std::uint32_t longest_plain_rest(Language language);
  std::uint32_t longest_found_rest(Language language);
  std::span<const Language> list(const Node& node) const { return {lists_.data() + node.a, node.b}; }

  std::vector<Node> nodes_;
  std::vector<ByteSet> first_;               // [nodes] the bytes that a text may begin with
  std::vector<std::uint32_t> least_length_;  // [nodes] no text has fewer bytes
  std::vector<Language> lists_;
  std::vector<ByteSet> sets_;
  struct SetHash {
    std::size_t operator()(const ByteSet& set) const;
  };
  std::unordered_map<ByteSet, std::uint32_t, SetHash> set_places_;
  std::array<std::uint32_t, 256> single_sets_;  // of one byte, most of all; kUnbounded where there is none
  std::vector<Limit> limits_;
  std::vector<Unit> units_;
  std::vector<std::uint32_t> table_;           // open addressing over nodes_
  std::vector<std::uint32_t> classes_places_;  // [nodes] in classes_; kUnbounded where nobody asked
  std::vector<ByteClasses> classes_;
  std::vector<Emptiness> emptiness_;
  std::uint32_t digit_set_ = 0;
  std::uint32_t point_set_ = 0;
  std::vector<Language> plain_characters_;
  std::array<WordMap, 2> recounted_;  // [Counts]
  WordMap bytes_counted_, longest_rest_;
  WordMap behind_long_;  // kDiffers: nothing
  WordMap goes_on_;
  WordMap strings_of_;  // of pairs, whether the one is strings of the other
};

}  // namespace nibble
