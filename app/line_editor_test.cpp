#include "app/line_editor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "app/display_text.h"

namespace nibble {
namespace {

// A terminal in memory: enough of one to see where every character and the cursor end up.
class ScreenTerminal : public TerminalPort {
 public:
  struct Step {
    std::string bytes;
    int columns = 0;  // not 0: the window was resized
  };

  explicit ScreenTerminal(int columns, int rows = 1000) : columns_(columns), height_(rows) {}

  void type(std::string bytes) { steps_.push_back({std::move(bytes), 0}); }
  void resize(int columns) { steps_.push_back({"", columns}); }

  Wake read(std::string& bytes, std::chrono::milliseconds timeout) override {
    if (steps_.empty()) return timeout.count() >= 0 ? Wake::timeout : Wake::closed;
    const Step step = steps_.front();
    steps_.pop_front();
    if (step.columns > 0) {
      columns_ = step.columns;
      return Wake::signal;
    }
    bytes += step.bytes;
    return Wake::bytes;
  }

  void write(std::string_view text) override {
    for (std::size_t at = 0; at < text.size();) {
      if (text[at] == '\x1b') {
        at = control(text, at);
        continue;
      }
      const std::size_t end = next_character(text, at);
      put(text.substr(at, end - at));
      at = end;
    }
  }
  int columns() override { return columns_; }
  int rows() override { return height_; }
  void enter_raw_mode() override { raw_ = true; }
  void leave_raw_mode() override { raw_ = false; }

  // The rows, blanks at their ends removed, joined by '|'.
  std::string screen() const {
    std::string all;
    for (const auto& row : rows_) {
      std::string line;
      for (const auto& cell : row) line += cell;
      line.erase(line.find_last_not_of(' ') + 1);
      all += (all.empty() ? "" : "|") + line;
    }
    return all;
  }
  int row() const { return row_; }
  int column() const { return column_; }
  bool raw() const { return raw_; }

 private:
  std::size_t control(std::string_view text, std::size_t at) {
    std::size_t end = at + 2;
    while (!(text[end] >= 0x40 && text[end] <= 0x7E)) ++end;
    const std::string number(text.substr(at + 2, end - at - 2));
    const int n = number.empty() || number[0] == '?' ? 1 : std::stoi(number);
    switch (text[end]) {
      case 'A': row_ = std::max(0, row_ - n); break;
      case 'C': column_ = std::min(columns_ - 1, column_ + n); break;
      case 'J':
        if (number == "2") rows_.assign(1, {});
        rows_.resize(static_cast<std::size_t>(row_) + 1);
        rows_.back().resize(std::min(rows_.back().size(), static_cast<std::size_t>(column_)));
        break;
      case 'H': row_ = column_ = 0; break;
      case 'h':
      case 'l': break;
      default: ADD_FAILURE() << "unknown sequence ending in " << text[end];
    }
    return end + 1;
  }

  void put(std::string_view character) {
    if (character == "\r" || character == "\r\n" || character == "\n") {
      if (character[0] == '\r') column_ = 0;
      if (character.back() == '\n') ++row_;
      if (rows_.size() <= static_cast<std::size_t>(row_)) rows_.resize(static_cast<std::size_t>(row_) + 1);
      return;
    }
    const int width = character_columns(character);
    ASSERT_LE(column_ + width, columns_) << "wrote past the edge: " << character;
    auto& row = rows_[static_cast<std::size_t>(row_)];
    row.resize(std::max(row.size(), static_cast<std::size_t>(column_ + width)), " ");
    row[static_cast<std::size_t>(column_)] = character;
    if (width == 2) row[static_cast<std::size_t>(column_) + 1] = "";
    column_ += width;
  }

  int columns_;
  int height_;
  std::deque<Step> steps_;
  std::vector<std::vector<std::string>> rows_{1};
  int row_ = 0;
  int column_ = 0;
  bool raw_ = false;
};

LineEditor::Line read_line(ScreenTerminal& terminal, const std::vector<std::string>& history = {}) {
  return LineEditor(terminal).read("> ", history);
}

std::string typed(const std::string& keys, const std::vector<std::string>& history = {}) {
  ScreenTerminal terminal(40);
  terminal.type(keys);
  terminal.type("\r");
  const LineEditor::Line line = read_line(terminal, history);
  EXPECT_EQ(line.outcome, LineEditor::Outcome::entered);
  EXPECT_FALSE(terminal.raw());
  return line.text;
}

TEST(LineEditor, TakesWhatIsTyped) {
  EXPECT_EQ(typed("Tell me a story"), "Tell me a story");
  EXPECT_EQ(typed("caf\xC3\xA9 \xE5\x8C\x97\xE9\xA2\xA8 \xF0\x9F\xA6\x8A"),
            "caf\xC3\xA9 \xE5\x8C\x97\xE9\xA2\xA8 \xF0\x9F\xA6\x8A");
}

TEST(LineEditor, EditsInTheMiddle) {
  EXPECT_EQ(typed("fx\x1b[Do"), "fox");
  EXPECT_EQ(typed("ox\x01"
                  "f\x05"
                  "es"),
            "foxes");
  EXPECT_EQ(typed("foxx\x7f"), "fox");
  EXPECT_EQ(typed("afox\x1b[H\x1b[3~"), "fox");
  EXPECT_EQ(typed("the fox\x1b[1;5D\x0b"), "the ");
  EXPECT_EQ(typed("the fox\x1b[1;5D\x15"), "fox");
  EXPECT_EQ(typed("the red fox\x17\x17"), "the ");
  EXPECT_EQ(typed("the red fox\x17\x01\x19"), "foxthe red ");
  EXPECT_EQ(typed("fxo\x14"), "fox");
  EXPECT_EQ(typed("\x7f\x1b[3~\x1b[D\x17\x15\x0b\x19\x14"
                  "fox"),
            "fox");
}

TEST(LineEditor, ErasesUserPerceivedCharacters) {
  EXPECT_EQ(typed("ae\xCC\x81\x7f"), "a");
  EXPECT_EQ(typed("a\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB"
                  "b\x1b[D\x7f"),
            "ab");
}

TEST(LineEditor, ControlCAndControlDEnd) {
  ScreenTerminal terminal(40);
  terminal.type("half a thou\x03");
  EXPECT_EQ(read_line(terminal).outcome, LineEditor::Outcome::interrupted);
  EXPECT_EQ(terminal.screen(), "> half a thou^C|");
  terminal.type("\x04");
  EXPECT_EQ(read_line(terminal).outcome, LineEditor::Outcome::end_of_input);
  EXPECT_EQ(typed("foxx\x01\x04"), "oxx");                                    // Ctrl-D in an entry erases
  EXPECT_EQ(read_line(terminal).outcome, LineEditor::Outcome::end_of_input);  // the terminal is gone
}

TEST(LineEditor, WalksHistoryAndComesBackToTheUnfinishedEntry) {
  const std::vector<std::string> history = {"first", "second"};
  EXPECT_EQ(typed("\x1b[A", history), "second");
  EXPECT_EQ(typed("\x1b[A\x1b[A\x1b[A", history), "first");
  EXPECT_EQ(typed("thi\x1b[A\x1b[A\x1b[B\x1b[Brd", history), "third");
  EXPECT_EQ(typed("\x1b[A\x7f\x7f", history), "seco");
  EXPECT_EQ(typed("x\x1b[B", history), "x");
}

TEST(LineEditor, PastedLineBreaksDoNotEnter) {
  ScreenTerminal terminal(40);
  terminal.type("\x1b[200~one\ntwo\x1b[201~!\r");
  EXPECT_EQ(read_line(terminal).text, "one\ntwo!");
  EXPECT_EQ(terminal.screen(), "> one\xE2\x86\xB5|two!|");
}

TEST(LineEditor, WhatWasTypedAheadBelongsToTheNextEntry) {
  ScreenTerminal terminal(40);
  LineEditor editor(terminal);
  terminal.type("one\rtwo\r");
  EXPECT_EQ(editor.read("> ", {}).text, "one");
  EXPECT_EQ(editor.read("> ", {}).text, "two");
  EXPECT_EQ(terminal.screen(), "> one|> two|");
}

TEST(LineEditor, WrapsLongEntriesAndWideCharactersAtTheEdge) {
  ScreenTerminal terminal(6);
  terminal.type("abcdefgh\r");
  read_line(terminal);
  EXPECT_EQ(terminal.screen(), "> abcd|efgh|");

  ScreenTerminal wide(6);
  wide.type("abc\xE5\x8C\x97z\r");  // the wide character does not fit into the last column
  read_line(wide);
  EXPECT_EQ(wide.screen(), "> abc|\xE5\x8C\x97z|");

  ScreenTerminal full(6);
  full.type("abcd");
  full.type("\x1b[D\x1b[D");
  full.type("X");
  read_line(full);
  EXPECT_EQ(full.screen(), "> abXc|d|");
}

TEST(LineEditor, ControlCharactersInHistoryCannotDriveTheTerminal) {
  ScreenTerminal terminal(40);
  terminal.type("\x1b[A\r");
  EXPECT_EQ(read_line(terminal, {"evil \x1b]0;title\x07"}).text, "evil \x1b]0;title\x07");
  EXPECT_EQ(terminal.screen(), "> evil ^[]0;title^G|");
}

TEST(LineEditor, ANarrowerWindowIsRedrawn) {
  ScreenTerminal terminal(20);
  terminal.type("tell me a story");
  terminal.resize(30);
  terminal.type(" now\r");
  EXPECT_EQ(read_line(terminal).text, "tell me a story now");
  EXPECT_EQ(terminal.screen(), "> tell me a story now|");
}

TEST(LineEditor, OfAnEntryHigherThanTheScreenOnlyItsEndIsDrawn) {
  ScreenTerminal terminal(10, 3);
  terminal.type("\x1b[200~1\n2\n3\n4\n5\n6\x1b[201~");
  terminal.type("!");
  terminal.type("\x1b[H");
  const LineEditor::Line line = read_line(terminal);
  EXPECT_EQ(terminal.screen(), "4\xE2\x86\xB5|5\xE2\x86\xB5|6!|");

  EntryBuffer entry;
  entry.set("1\n2\n3\n4\n5\n6");
  for (int i = 0; i < 8; ++i) entry.left();
  EntryLayout layout = lay_out("> ", entry, 10);
  layout.keep_rows(3);  // the cursor stands behind the 2
  ASSERT_EQ(layout.rows.size(), 3u);
  EXPECT_EQ(layout.rows[0].text, "2\xE2\x86\xB5");
  EXPECT_EQ(layout.cursor_row, 0);
}

// The screen always shows what one layout of the final entry would, whatever was done to get there.
TEST(LineEditor, RandomEditingLeavesTheScreenRight) {
  const std::vector<std::string> keys = {"a",
                                         "bc ",
                                         "\xE5\x8C\x97",
                                         "e\xCC\x81",
                                         "\xF0\x9F\xA6\x8A",
                                         "\x1b[D",
                                         "\x1b[C",
                                         "\x1b[H",
                                         "\x1b[F",
                                         "\x7f",
                                         "\x1b[3~",
                                         "\x17",
                                         "\x14",
                                         "\x1b[1;5D",
                                         "\x1b[1;5C",
                                         "\x19",
                                         "long enough to wrap "};
  std::mt19937 random(20);
  for (int round = 0; round < 300; ++round) {
    const int columns = 2 + static_cast<int>(random() % 24);
    ScreenTerminal terminal(columns);
    const int count = static_cast<int>(random() % 30);
    for (int i = 0; i < count; ++i) terminal.type(keys[random() % keys.size()]);
    terminal.type("\r");
    const LineEditor::Line line = read_line(terminal);
    EntryBuffer entry;
    entry.set(line.text);
    ScreenTerminal fresh(columns);
    for (const EntryLayout::Row& row : lay_out("> ", entry, columns).rows) fresh.write(row.text + "\r\n");
    ASSERT_EQ(terminal.screen(), fresh.screen()) << "entry " << line.text << " in " << columns << " columns";
    ASSERT_EQ(terminal.row(), fresh.row());
  }
}

}  // namespace
}  // namespace nibble
