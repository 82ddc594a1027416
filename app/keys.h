// A terminal's bytes as keys.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

enum class KeyKind {
  text,   // one or more characters typed
  paste,  // text between the marks of a bracketed paste, line ends as \n
  enter,
  new_line,  // Alt-Enter: a line break inside the entry
  backspace,
  erase,  // Delete
  left,
  right,
  up,
  down,
  home,
  end,
  word_left,
  word_right,
  erase_to_end,    // Ctrl-K
  erase_to_start,  // Ctrl-U
  erase_word,      // Ctrl-W
  erase_word_right,
  transpose,     // Ctrl-T
  put_back,      // Ctrl-Y
  clear_screen,  // Ctrl-L
  interrupt,     // Ctrl-C
  end_of_input,  // Ctrl-D
  unknown,
};

struct Key {
  KeyKind kind = KeyKind::unknown;
  std::string text;
};

class KeyDecoder {
 public:
  void feed(std::string_view bytes) { bytes_ += bytes; }
  // The next whole key; nothing when the bytes so far end inside of one.
  std::optional<Key> next();
  // Bytes wait for the rest of their key.
  bool waiting() const { return !bytes_.empty(); }
  // Whether no more can come soon: an escape sequence arrives at once or not at all, a paste ends when it
  // ends.
  bool may_give_up() const;
  // The rest of the key did not come: what waits is dropped.
  void give_up() { bytes_.clear(); }

 private:
  Key take(std::size_t length, KeyKind kind);
  std::optional<Key> escape();
  std::optional<Key> control_sequence();
  std::optional<Key> paste();

  std::string bytes_;
};

}  // namespace nibble
