#include "app/line_editor.h"

#include <algorithm>
#include <chrono>

#include "app/display_text.h"

namespace nibble {
namespace {

constexpr std::chrono::milliseconds kEscapeWait{50};
constexpr std::chrono::milliseconds kForEver{-1};
constexpr std::string_view kLineBreakMark = "\xE2\x86\xB5";  // U+21B5
constexpr std::string_view kPasteOn = "\x1b[?2004h";
constexpr std::string_view kPasteOff = "\x1b[?2004l";

bool is_blank(char c) { return c == ' ' || c == '\n'; }

std::string cursor_up(int rows) { return rows > 0 ? "\x1b[" + std::to_string(rows) + "A" : ""; }

std::string to_column(int column) { return column > 0 ? "\r\x1b[" + std::to_string(column) + "C" : "\r"; }

}  // namespace

// --- EntryBuffer

void EntryBuffer::set(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void EntryBuffer::insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
  // A combining character joins the one before it; the cursor must not end up inside.
  if (cursor_ < text_.size())
    cursor_ = std::max(cursor_, next_character(text_, previous_character(text_, cursor_)));
}

void EntryBuffer::left() {
  if (cursor_ > 0) cursor_ = previous_character(text_, cursor_);
}

void EntryBuffer::right() {
  if (cursor_ < text_.size()) cursor_ = next_character(text_, cursor_);
}

void EntryBuffer::home() {
  const std::size_t line = cursor_ > 0 ? text_.rfind('\n', cursor_ - 1) : std::string::npos;
  cursor_ = line == std::string::npos ? 0 : line + 1;
}

void EntryBuffer::end() { cursor_ = std::min(text_.find('\n', cursor_), text_.size()); }

std::size_t EntryBuffer::word_begin() const {
  std::size_t at = cursor_;
  while (at > 0 && is_blank(text_[at - 1])) --at;
  while (at > 0 && !is_blank(text_[at - 1])) --at;
  return at;
}

std::size_t EntryBuffer::word_end() const {
  std::size_t at = cursor_;
  while (at < text_.size() && is_blank(text_[at])) ++at;
  while (at < text_.size() && !is_blank(text_[at])) ++at;
  return at;
}

void EntryBuffer::word_left() { cursor_ = word_begin(); }
void EntryBuffer::word_right() { cursor_ = word_end(); }

void EntryBuffer::erase_left() {
  if (cursor_ == 0) return;
  const std::size_t begin = previous_character(text_, cursor_);
  text_.erase(begin, cursor_ - begin);
  cursor_ = begin;
}

void EntryBuffer::erase_right() {
  if (cursor_ < text_.size()) text_.erase(cursor_, next_character(text_, cursor_) - cursor_);
}

void EntryBuffer::cut(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  cut_ = text_.substr(begin, end - begin);
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

void EntryBuffer::erase_to_end() { cut(cursor_, std::min(text_.find('\n', cursor_), text_.size())); }

void EntryBuffer::erase_to_start() {
  const std::size_t end = cursor_;
  home();
  cut(cursor_, end);
}

void EntryBuffer::erase_word_left() { cut(word_begin(), cursor_); }
void EntryBuffer::erase_word_right() { cut(cursor_, word_end()); }
void EntryBuffer::put_back() { insert(cut_); }

void EntryBuffer::transpose() {
  if (cursor_ == 0) return;
  if (cursor_ == text_.size()) left();
  if (cursor_ == 0) return;
  const std::size_t begin = previous_character(text_, cursor_);
  const std::size_t end = next_character(text_, cursor_);
  const std::string swapped = text_.substr(cursor_, end - cursor_) + text_.substr(begin, cursor_ - begin);
  text_.replace(begin, end - begin, swapped);
  cursor_ = end;
}

// --- Layout

void EntryLayout::keep_rows(int height) {
  height = std::max(height, 1);
  if (last_row() < height) return;
  const int first = std::min(cursor_row, last_row() - height + 1);
  rows.erase(rows.begin() + std::min(first + height, last_row() + 1), rows.end());
  rows.erase(rows.begin(), rows.begin() + first);
  cursor_row -= first;
}

EntryLayout lay_out(std::string_view prompt, const EntryBuffer& entry, int columns) {
  columns = std::max(columns, 2);  // the widest character has to fit
  EntryLayout layout;
  layout.rows.emplace_back();
  int column = 0;
  const auto next_row = [&] {
    layout.rows.emplace_back();
    column = 0;
  };
  const auto put = [&](std::string_view shown) {
    for (std::size_t at = 0; at < shown.size();) {
      const std::size_t end = next_character(shown, at);
      const int width = character_columns(shown.substr(at, end - at));
      if (column + width > columns) next_row();
      layout.rows.back().text += shown.substr(at, end - at);
      layout.rows.back().columns = column += width;
      at = end;
    }
  };
  put(prompt);
  const std::string_view text = entry.text();
  std::size_t at = 0;
  for (;;) {
    // A full row's cursor stands on the next one, not past the edge.
    if (column == columns && (at == entry.cursor() || at < text.size())) next_row();
    if (at == entry.cursor()) {
      layout.cursor_row = layout.last_row();
      layout.cursor_column = column;
    }
    if (at == text.size()) break;
    const std::size_t end = next_character(text, at);
    const std::string_view character = text.substr(at, end - at);
    // The cursor of a wide character that does not fit any more is where that character goes.
    if (at == entry.cursor() && column + character_columns(character) > columns) {
      next_row();
      layout.cursor_row = layout.last_row();
      layout.cursor_column = 0;
    }
    if (character == "\n") {
      put(kLineBreakMark);
      next_row();
    } else {
      put(visible_text(character));
    }
    at = end;
  }
  return layout;
}

// --- LineEditor

LineEditor::Line LineEditor::read(std::string_view prompt, const std::vector<std::string>& history) {
  prompt_ = prompt;
  history_ = &history;
  history_at_ = history.size();
  entry_ = {};
  unfinished_.clear();
  shown_ = {};
  terminal_.enter_raw_mode();
  terminal_.write(kPasteOn);
  redraw();

  Line line;
  for (;;) {
    bool changed = false;
    bool done = false;
    while (const std::optional<Key> key = done ? std::nullopt : keys_.next()) {
      changed = true;
      done = apply(*key, line) == Next::done;
    }
    if (changed) redraw();
    if (!done && !wait_for_bytes()) {
      line = {Outcome::end_of_input, {}};
      done = true;
      entry_.set(entry_.text());
      redraw();
    }
    if (!done) continue;
    leave(line.outcome);
    return line;
  }
}

bool LineEditor::wait_for_bytes() {
  std::string bytes;
  const auto timeout = keys_.may_give_up() ? kEscapeWait : kForEver;
  switch (terminal_.read(bytes, timeout)) {
    case TerminalPort::Wake::bytes: keys_.feed(bytes); break;
    case TerminalPort::Wake::timeout: keys_.give_up(); break;
    case TerminalPort::Wake::signal: redraw(); break;
    case TerminalPort::Wake::closed: return false;
  }
  return true;
}

LineEditor::Next LineEditor::apply(const Key& key, Line& line) {
  switch (key.kind) {
    case KeyKind::enter:
      entry_.set(entry_.text());
      line = {Outcome::entered, entry_.text()};
      return Next::done;
    case KeyKind::interrupt:
      entry_.set(entry_.text());
      line = {Outcome::interrupted, entry_.text()};
      return Next::done;
    case KeyKind::end_of_input:
      if (!entry_.text().empty()) {
        entry_.erase_right();
        return Next::more;
      }
      line = {Outcome::end_of_input, {}};
      return Next::done;
    case KeyKind::up: walk_history(-1); return Next::more;
    case KeyKind::down: walk_history(1); return Next::more;
    case KeyKind::clear_screen:
      terminal_.write("\x1b[H\x1b[2J");
      shown_ = {};
      return Next::more;
    default: return apply_edit(key);
  }
}

LineEditor::Next LineEditor::apply_edit(const Key& key) {
  switch (key.kind) {
    case KeyKind::text:
    case KeyKind::paste: entry_.insert(key.text); break;
    case KeyKind::new_line: entry_.insert("\n"); break;
    case KeyKind::backspace: entry_.erase_left(); break;
    case KeyKind::erase: entry_.erase_right(); break;
    case KeyKind::left: entry_.left(); break;
    case KeyKind::right: entry_.right(); break;
    case KeyKind::home: entry_.home(); break;
    case KeyKind::end: entry_.end(); break;
    case KeyKind::word_left: entry_.word_left(); break;
    case KeyKind::word_right: entry_.word_right(); break;
    case KeyKind::erase_to_end: entry_.erase_to_end(); break;
    case KeyKind::erase_to_start: entry_.erase_to_start(); break;
    case KeyKind::erase_word: entry_.erase_word_left(); break;
    case KeyKind::erase_word_right: entry_.erase_word_right(); break;
    case KeyKind::put_back: entry_.put_back(); break;
    case KeyKind::transpose: entry_.transpose(); break;
    default: break;
  }
  return Next::more;
}

void LineEditor::walk_history(int direction) {
  if (direction < 0 ? history_at_ == 0 : history_at_ == history_->size()) return;
  if (history_at_ == history_->size()) unfinished_ = entry_.text();
  history_at_ += direction < 0 ? std::size_t(-1) : 1;
  entry_.set(history_at_ == history_->size() ? unfinished_ : (*history_)[history_at_]);
}

void LineEditor::redraw() {
  const int columns = terminal_.columns();
  // A narrower window has broken the rows that stand above the cursor.
  int rows_above = shown_.cursor_row;
  if (shown_columns_ > columns && columns > 0) {
    rows_above = (std::max(shown_.cursor_column, 1) - 1) / columns;
    for (int row = 0; row < shown_.cursor_row; ++row) {
      rows_above += std::max(1, (shown_.rows[static_cast<std::size_t>(row)].columns + columns - 1) / columns);
    }
  }
  EntryLayout layout = lay_out(prompt_, entry_, columns);
  layout.keep_rows(terminal_.rows());  // what has scrolled out of the screen cannot be redrawn
  std::string out = "\x1b[?25l" + cursor_up(rows_above) + "\r\x1b[J";
  for (const EntryLayout::Row& row : layout.rows) out += (&row == &layout.rows[0] ? "" : "\r\n") + row.text;
  out += cursor_up(layout.last_row() - layout.cursor_row) + to_column(layout.cursor_column) + "\x1b[?25h";
  terminal_.write(out);
  shown_ = std::move(layout);
  shown_columns_ = columns;
}

void LineEditor::leave(Outcome outcome) {
  // The entry stays on the screen with the cursor at its end; what comes next begins below it.
  std::string out = outcome == Outcome::interrupted ? "^C\r\n" : "\r\n";
  out += kPasteOff;
  terminal_.write(out);
  terminal_.leave_raw_mode();
}

}  // namespace nibble
