// Editing one entry in a terminal: emacs keys, history, wide characters, bracketed paste, window resizes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/keys.h"
#include "app/terminal.h"

namespace nibble {

// The entry and its cursor; knows nothing of the screen.
class EntryBuffer {
 public:
  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }

  void set(std::string text);
  void insert(std::string_view text);
  void left();
  void right();
  void home();
  void end();
  void word_left();
  void word_right();
  void erase_left();
  void erase_right();
  // These keep what they erase for put_back.
  void erase_to_end();
  void erase_to_start();
  void erase_word_left();
  void erase_word_right();
  void put_back();
  // Exchanges the characters around the cursor and moves on.
  void transpose();

 private:
  void cut(std::size_t begin, std::size_t end);
  std::size_t word_begin() const;
  std::size_t word_end() const;

  std::string text_;
  std::string cut_;
  std::size_t cursor_ = 0;  // a byte offset between characters
};

// Where prompt and entry stand when written from column 0 of a terminal this wide.
struct EntryLayout {
  struct Row {
    std::string text;
    int columns = 0;
  };
  std::vector<Row> rows;
  int cursor_row = 0;
  int cursor_column = 0;

  int last_row() const { return static_cast<int>(rows.size()) - 1; }
  // Leaves at most `height` rows: those that end with the last one, or earlier ones where the cursor is
  // above.
  void keep_rows(int height);
};
// Line breaks of the entry show as a mark in place; a row never relies on the terminal's own wrapping.
EntryLayout lay_out(std::string_view prompt, const EntryBuffer& entry, int columns);

class LineEditor {
 public:
  enum class Outcome { entered, interrupted, end_of_input };
  struct Line {
    Outcome outcome = Outcome::entered;
    std::string text;
  };

  explicit LineEditor(TerminalPort& terminal) : terminal_(terminal) {}

  // Reads one entry. Up and down walk `history` (oldest first). Interrupted: Ctrl-C. End of input: Ctrl-D on
  // an empty entry, or the terminal is gone. The cursor is left on a fresh line.
  Line read(std::string_view prompt, const std::vector<std::string>& history);

 private:
  enum class Next { more, done };
  Next apply(const Key& key, Line& line);
  Next apply_edit(const Key& key);
  void walk_history(int direction);
  bool wait_for_bytes();  // false: the terminal is gone
  void redraw();
  void leave(Outcome outcome);

  TerminalPort& terminal_;
  KeyDecoder keys_;  // outlives a read: what was typed ahead belongs to the next entry
  EntryBuffer entry_;
  std::string prompt_;
  const std::vector<std::string>* history_ = nullptr;
  std::size_t history_at_ = 0;
  std::string unfinished_;  // the entry as it was before history was walked
  EntryLayout shown_;
  int shown_columns_ = 0;
};

}  // namespace nibble
