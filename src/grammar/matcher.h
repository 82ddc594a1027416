// Follows a text byte by byte: every way in which the grammar could have made it so far, as one state. A way
// is what is left of a regular language and the stack of symbols behind it. Stacks, states and the steps
// between them are stored once each, so that a place that was seen before costs one look-up. A stack that
// opens into many ways (an object's keys) stays one way until a byte is read, and the states that hold it
// share what that byte leads to.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "grammar/byte_set.h"
#include "grammar/symbols.h"

namespace nibble {

class Matcher {
 public:
  using State = std::uint32_t;
  static constexpr State kDead = 0;

  // `usable` are the symbols that have texts; the others are never entered.
  Matcher(std::shared_ptr<const Symbols> symbols, std::shared_ptr<const std::vector<bool>> usable);

  State start() const { return start_; }
  State step(State state, std::uint8_t byte) {
    if (const Row* row = states_[state].row) {
      const State next = (*row)[byte];
      if (next != kUnbounded) return next;
    }
    return make_step(state, byte);
  }
  // The steps of one state, for who takes many.
  class Steps {
   public:
    Steps(Matcher& matcher, State state) : matcher_(matcher), state_(state) {}
    State to(std::uint8_t byte) {
      if (row_ == nullptr) row_ = matcher_.states_[state_].row;
      if (row_ != nullptr && (*row_)[byte] != kUnbounded) return (*row_)[byte];
      return matcher_.make_step(state_, byte);
    }

   private:
    Matcher& matcher_;
    State state_;
    const std::array<State, 256>* row_ = nullptr;  // a row never moves
  };
  Steps steps(State state) { return {*this, state}; }
  bool complete(State state) const { return states_[state].complete; }
  // Any text of at most so many plain JSON string characters may come next.
  std::uint32_t plain_prefix(State state) const { return states_[state].plain; }
  // A text of more plain characters than plain_prefix() may not come next.
  bool plain_ends(State state) const { return states_[state].plain_ends; }
  // As PlainPrefix::uniform, of every way.
  bool uniform(State state) const { return states_[state].uniform; }
  // No text goes on with another byte.
  ByteSet first_bytes(State state) const { return states_[state].first; }
  // The same place without the texts that are kept to be told from later ones, and from where none is: what
  // texts have in common there. It takes every text that `state` takes, and more only where a text holds an
  // element and another one that it must differ from, or more elements than a token can.
  State without_copies(State state);
  bool tells_apart() const { return tells_apart_; }
  // From now on a token has at most so many elements of an array. Where that changes, everything but the
  // start is forgotten.
  void set_token_elements(std::uint32_t elements);
  // How many ends such a text may have, but no more than `most`.
  std::uint32_t copied_texts(State state, std::uint32_t most);
  // What has been copied of the text that is being read: each way began it at the same place.
  std::string copied_text(State state) const;
  // Whether a text of which such a copy is made is being read, or would be.
  bool in_copied(State state) const { return states_[state].in_copied; }
  // Whether anything else may be read there as well.
  bool in_others(State state) const { return states_[state].in_others; }
  // Whether the text of some way is one that text_reach.h finds once for many places.
  bool has_apart(State state) const { return states_[state].apart; }
  // What such a state is without those ways, and them; what stands behind their texts few who ask need.
  struct NarrowWay {
    Language text;
    std::uint32_t frame;
  };
  State behind(const NarrowWay& way) { return opened(way.frame); }
  struct Split {
    State rest = kDead;
    std::vector<NarrowWay> ways;
  };
  const Split& split(State state);
  // A place in a key: the declared ones that it may become, and the others, all of them but the declared.
  struct KeyPlace {
    std::vector<NarrowWay> declared;
    Language others = kNothing;
    Language any = kNothing;  // what `others` is behind a character that begins no declared key
    State usual = kDead;      // the place there
  };
  // Nothing: it is another place.
  std::optional<KeyPlace> key_place(State state);
  // Of a place whose texts count, far from the end of the counts: the place where they have no end, and one
  // that counts as much or less and that many places have in common. What may come at `rounded` may come at
  // the place, and that at `endless`. Texts of at most so many bytes may come at all three or at none.
  struct FarFromEnd {
    State endless, rounded;
    std::uint32_t bytes;
  };
  std::optional<FarFromEnd> far_from_end(State state);
  // The state behind a character of more than one byte, whichever of this kind it is; nothing where that
  // differs, or is not known to be one.
  std::optional<State> behind_long(State state, LongCharacters kind);
  Languages& languages() { return languages_; }
  std::size_t memory() const;
  std::size_t states() const { return states_.size(); }
  // The steps between states are forgotten: most of the memory. States stay what they are.
  void forget_steps();
  // Everything but the start is forgotten.
  void reset();

 private:
  // A frame of kCopied stands behind a key or an element whose text is copied while it is read: `at` is the
  // copy, `next` the frame of the object or array before it, `seen` which of an object's others it is.
  struct Frame {
    SymbolId symbol;
    std::uint32_t at;    // how far the symbol is: parts, times, members or elements
    std::uint32_t next;  // kTextEnd, or kEndWithoutCopies above which nothing is copied
    Language seen;       // keys or elements so far that may not come again
    bool operator==(const Frame&) const = default;
  };
  static constexpr std::uint32_t kTextEnd = 0, kEndWithoutCopies = 1;
  static constexpr SymbolId kCopied = kNoSymbol - 1;
  // Opens into what the frame `at` opens into, itself none of these, and into what `next` does.
  static constexpr SymbolId kEither = kNoSymbol - 2;
  // Of an array's `at` that keeps its elements apart: an element comes next.
  static constexpr std::uint32_t kAtElement = 0x80000000;
  // A text as the byte behind another one.
  struct Copy {
    std::uint32_t before;
    std::uint8_t byte;
  };
  // The text of `language`, then `frame`. Where nothing is left of the text the way stands for all that the
  // frame opens into.
  struct Way {
    Language language;
    std::uint32_t frame;
    bool unopened() const { return language == kEmptyText; }
    bool operator==(const Way&) const = default;
  };
  static constexpr State kDiffers = kUnbounded - 1;
  using Row = std::array<State, 256>;
  // Of a state of many ways: those that go on at a byte.
  struct Crossing {
    std::array<std::uint32_t, 257> begin = {};
    std::vector<std::uint32_t> ways;
    std::array<std::uint64_t, 256> which = {};  // a hash of them
  };
  struct Place {
    ByteSet first;  // no text goes on with another byte
    std::uint32_t begin = 0, count = 0;
    Row* row = nullptr;  // in rows_
    std::uint32_t crossing = kUnbounded;
    std::uint32_t plain = 0;
    bool complete = false;
    bool plain_ends = false;
    bool uniform = false;
    bool in_copied = false, in_others = false;
    bool apart = false;
    bool copying = false;  // what a byte leads to is not kept: no other text comes here
    State without_copies = kUnbounded;
    std::array<State, 2> behind_long = {kUnbounded, kUnbounded};  // [kinds] kDiffers: nothing
    std::uint32_t split = kUnbounded;
  };
  State make_step(State state, std::uint8_t byte);
  Row* make_row(const ByteSet& first);
  State find_behind_long(State state, LongCharacters kind);
  std::span<const std::uint32_t> going_on(State state, std::uint8_t byte);
  ByteSet alike(const Place& place, std::span<const std::uint32_t> ways, std::uint8_t byte);
  std::uint32_t frame(SymbolId symbol, std::uint32_t at, std::uint32_t next, Language seen = kNothing);
  std::uint32_t any_frame(std::vector<std::uint32_t>& of);
  void join_alike(std::vector<Way>& ways);
  std::uint32_t copy(std::uint32_t before, std::uint8_t byte);
  std::string text_of(std::uint32_t copy) const;
  bool is_copied(const Way& way) const;
  bool is_apart(const Way& way) const;
  bool copies(const Way& way) const { return is_copied(way) && !bare_[way.frame]; }
  std::uint32_t bare_frame(std::uint32_t frame);
  std::uint32_t far_place(const Frame& at) const;
  bool is_long(const ArrayShape& array) const;
  void enter_copied(const Frame& frame);
  // The state of a text behind which the frame comes.
  State opened(std::uint32_t frame);
  void open_frames();
  void add(Language language, std::uint32_t next);
  void enter(std::uint32_t frame);
  struct ObjectPlace;
  struct OpenObject;
  void enter_object(const Frame& frame, std::uint32_t place);
  void enter_between(const OpenObject& open);
  void enter_declared(const OpenObject& open);
  void enter_others(const OpenObject& open);
  void add_member(const OpenObject& open, Language key, SymbolId value, ObjectPlace behind);
  void enter_array(const Frame& frame, std::uint32_t place);
  void enter_counted(const ArrayShape& array, const Frame& frame);
  std::uint32_t others_left(const ObjectShape& object, const Frame& frame) const;
  State intern(std::vector<Way>& ways, bool complete);
  void join(State state, std::vector<Way>& ways, bool& complete) const;

  std::shared_ptr<const Symbols> symbols_;
  std::shared_ptr<const std::vector<bool>> usable_;
  Languages languages_;
  std::vector<Frame> frames_;
  std::vector<std::uint32_t> frame_table_;
  std::vector<bool> bare_;                  // [frames] whether they stand above kEndWithoutCopies
  std::vector<std::uint32_t> bare_frames_;  // [frames] the same above it; kUnbounded where nobody asked
  std::vector<AskedNeeds> asked_needs_;     // [objects] empty where nothing is asked for
  bool tells_apart_ = false;                // whether the grammar has anything to copy
  bool has_long_arrays_ = false;            // whether it has an array whose end is far at some places
  std::uint32_t token_elements_ = kUnbounded;
  std::vector<Copy> copies_;  // the first is the empty text
  WordMap copy_places_;
  std::vector<Way> ways_;
  std::vector<Place> states_;
  std::vector<std::uint32_t> state_hashes_;  // [states]
  std::vector<std::uint32_t> state_table_;
  std::deque<Row> rows_;       // a row never moves
  std::size_t rows_used_ = 0;  // those behind them are kept for later steps
  std::vector<Crossing> crossings_;
  std::deque<Split> splits_;  // a split never moves
  State start_ = kDead;

  std::vector<State> opened_;  // [frames] kUnbounded where nobody asked
  // Of the frame that is being opened.
  std::vector<Way> found_;
  std::vector<std::uint32_t> open_;
  std::vector<std::uint32_t> entered_;  // [frames] the number of the opening that entered the frame last
  std::uint32_t opening_ = 0;
  bool found_end_ = false;

  // Of the state that is being made.
  std::vector<Way> made_;
  std::vector<std::uint32_t> all_ways_;
};

}  // namespace nibble
