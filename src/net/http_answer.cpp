#include "net/http_answer.h"

#include <algorithm>
#include <charconv>

#include "base/quote.h"

namespace nibble {
namespace {

constexpr std::size_t kMostHead = 64 << 10;
constexpr std::size_t kMostLine = 8 << 10;
constexpr std::size_t kMostTrailers = 64 << 10;
constexpr int kMostInterim = 16;
constexpr std::size_t kMostEvent = 16 << 20;

std::string lower(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return lowered;
}

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

template <class T>
bool read_number(std::string_view text, T& number, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Status HttpAnswer::take_head() {
  std::string_view head(held_);
  const auto line_of = [&head] {
    const std::size_t end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + 2, head.size()));
    return line;
  };
  const std::string_view first = line_of();
  if (!first.starts_with("HTTP/1.") || first.size() < 12 || !read_number(first.substr(9, 3), status_))
    return io_error("it does not speak HTTP/1.1: it began with " + quote(first, 60));
  keeps_alive_ = first[7] == '1';
  headers_.clear();
  length_.reset();
  state_ = State::until_close;
  while (!head.empty()) {
    const std::string_view line = line_of();
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    NIBBLE_RETURN_IF_ERROR(take_header(lower(line.substr(0, colon)), trim(line.substr(colon + 1))));
  }
  held_.clear();
  if (state_ == State::until_close && length_) {
    left_ = *length_;
    state_ = left_ > 0 ? State::body : State::complete;
  }
  if (status_ >= 100 && status_ < 200) {
    if (++interim_ > kMostInterim) return io_error("it sends one interim answer after the other");
    state_ = State::head;  // the answer itself follows
  } else if (status_ == 204 || status_ == 304) {
    state_ = State::complete;
  }
  if (state_ == State::until_close) keeps_alive_ = false;
  return {};
}

Status HttpAnswer::take_header(const std::string& name, std::string_view value) {
  headers_.emplace_back(name, value);
  if (name == "connection") keeps_alive_ = lower(value).find("close") == std::string::npos;
  if (name == "transfer-encoding") {
    if (lower(value) != "chunked") return io_error("it sends its answer in a coding that is not known here");
    state_ = State::chunk_size;
  }
  if (name == "content-length") {
    std::uint64_t length = 0;
    if (!read_number(value, length)) return io_error("its Content-Length is no number");
    if (length_ && *length_ != length) return io_error("it says two lengths of one answer");
    length_ = length;
  }
  return {};
}

std::optional<std::string_view> HttpAnswer::header(std::string_view name) const {
  const auto found = std::find_if(headers_.begin(), headers_.end(),
                                  [name](const auto& header) { return header.first == name; });
  if (found == headers_.end()) return std::nullopt;
  return found->second;
}

// Moves bytes up to the end of a line into held_; whole: its end is there.
bool HttpAnswer::next_line(std::string_view& bytes, bool& whole) {
  const std::size_t end = bytes.find('\n');
  whole = end != std::string_view::npos;
  held_.append(bytes.substr(0, end));
  bytes.remove_prefix(whole ? end + 1 : bytes.size());
  if (whole && held_.ends_with('\r')) held_.pop_back();
  return held_.size() <= kMostLine;
}

Status HttpAnswer::take_line(std::string_view line) {
  if (state_ == State::chunk_end) {
    if (!line.empty()) return io_error("a chunk of its answer does not end where it should");
    state_ = State::chunk_size;
  } else if (state_ == State::trailers) {
    trailers_ += line.size() + 2;
    if (trailers_ > kMostTrailers) return io_error("its answer has no end: 64 KB of trailers");
    if (line.empty()) state_ = State::complete;
  } else {
    if (!read_number(trim(line.substr(0, line.find(';'))), left_, 16))
      return io_error("a chunk of its answer has no size");
    state_ = left_ > 0 ? State::chunk : State::trailers;
  }
  return {};
}

Status HttpAnswer::take(std::string_view bytes, const OnBody& on_body) {
  while (!bytes.empty()) {
    switch (state_) {
      case State::complete: return io_error("it sent more than its answer");
      case State::head: {
        const std::size_t before = held_.size();
        held_.append(bytes.substr(0, kMostHead));
        const std::size_t end = held_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
        if (end == std::string::npos) {
          if (held_.size() >= kMostHead) return io_error("it does not speak HTTP: no head in 64 KB");
          return {};
        }
        bytes.remove_prefix(end + 4 - before);
        held_.resize(end);
        NIBBLE_RETURN_IF_ERROR(take_head());
        break;
      }
      case State::until_close: on_body(bytes); return {};
      case State::body:
      case State::chunk: {
        const std::string_view part = bytes.substr(0, left_);
        bytes.remove_prefix(part.size());
        left_ -= part.size();
        on_body(part);
        if (left_ == 0) state_ = state_ == State::body ? State::complete : State::chunk_end;
        break;
      }
      case State::chunk_size:
      case State::chunk_end:
      case State::trailers: {
        bool whole = false;
        if (!next_line(bytes, whole)) return io_error("a line of its answer's framing is too long");
        if (!whole) return {};
        NIBBLE_RETURN_IF_ERROR(take_line(held_));
        held_.clear();
        break;
      }
    }
  }
  return {};
}

Status HttpAnswer::end() {
  if (state_ == State::until_close) state_ = State::complete;
  if (state_ == State::complete) return {};
  return io_error(status_ == 0 ? "it closed the connection without an answer"
                               : "the connection broke off in the midst of an answer");
}

Status EventReader::take(std::string_view bytes, const std::function<void(std::string_view data)>& on_event) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (line_.size() + data_.size() > kMostEvent)
      return resource_exhausted("it sent an event of more than 16 MB");
    if (end == std::string_view::npos) return {};
    bytes.remove_prefix(end + 1);
    std::string_view line(line_);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) {
      if (has_data_) on_event(data_);
      data_.clear();
      has_data_ = false;
    } else if (line.starts_with("data:")) {
      line.remove_prefix(line.starts_with("data: ") ? 6 : 5);
      if (has_data_) data_ += '\n';
      data_ += line;
      has_data_ = true;
    }
    line_.clear();
  }
  return {};
}

}  // namespace nibble
