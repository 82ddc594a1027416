#include "server/http/body_reader.h"

#include <algorithm>
#include <charconv>

namespace nibble::http {
namespace {

constexpr std::size_t most_chunk_line = 256;  // a size and its extensions, which mean nothing here
constexpr std::size_t most_trailer = 8 << 10;

Refusal too_large(std::uint64_t most) {
  return {413, "the body is larger than " + std::to_string(most) + " bytes"};
}

std::string_view without_space(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text;
}

// What follows a chunk's size: nothing, or any number of `; name`, `; name=token`, `; name="text"`.
bool is_extension(std::string_view text) {
  const auto word = [&text](std::string_view beyond) {
    const std::string_view found = text.substr(0, text.find_first_of(beyond));
    text.remove_prefix(found.size());
    return is_token(found);
  };
  while (!text.empty()) {
    text = without_space(text);
    if (!text.starts_with(';')) return false;
    text = without_space(text.substr(1));
    if (!word("; \t=")) return false;
    const std::string_view value = without_space(text);
    if (!value.starts_with('=')) continue;
    text = without_space(value.substr(1));
    if (!text.starts_with('"')) {
      if (!word("; \t")) return false;
      continue;
    }
    std::size_t close = 1;
    while (close < text.size() && text[close] != '"') close += text[close] == '\\' ? 2 : 1;
    if (close >= text.size()) return false;
    text.remove_prefix(close + 1);
  }
  return true;
}

}  // namespace

std::variant<BodyReader, Refusal> BodyReader::start(const RequestHead& head, std::uint64_t most_bytes,
                                                    bool keep) {
  switch (head.framing) {
    case BodyFraming::none: return BodyReader(State::complete, 0, most_bytes, keep);
    case BodyFraming::length:
      if (head.content_length > most_bytes) return too_large(most_bytes);
      return BodyReader(State::data, head.content_length, most_bytes, keep);
    case BodyFraming::chunked: break;
  }
  return BodyReader(State::chunk_size, 0, most_bytes, keep);
}

std::optional<Refusal> BodyReader::begin_chunk(std::string_view line) {
  const std::size_t digits = std::min(line.find_first_of("; \t"), line.size());
  const auto [end, error] = std::from_chars(line.data(), line.data() + digits, left_, 16);
  if (digits == 0 || end != line.data() + digits || error == std::errc::invalid_argument)
    return Refusal{400, "a chunk's size is not a hexadecimal number"};
  if (error != std::errc() || left_ > most_bytes_ - taken_) return too_large(most_bytes_);
  const std::string_view extension = line.substr(digits);
  if (!is_extension(extension)) return Refusal{400, "a chunk's size is followed by something else"};
  if (std::any_of(extension.begin(), extension.end(),
                  [](char c) { return (c < ' ' && c >= 0 && c != '\t') || c == 0x7f; })) {
    return Refusal{400, "a chunk's extension has a control character"};
  }
  state_ = left_ == 0 ? State::trailer : State::chunk_data;
  return {};
}

std::variant<std::size_t, Refusal> BodyReader::take(std::string_view bytes) {
  std::size_t taken = 0;
  while (state_ != State::complete) {
    const std::string_view rest = bytes.substr(taken);
    if (state_ == State::data || state_ == State::chunk_data) {
      const std::size_t size = static_cast<std::size_t>(std::min<std::uint64_t>(left_, rest.size()));
      if (keep_) body_.append(rest.substr(0, size));
      taken_ += size;
      taken += size;
      left_ -= size;
      if (left_ > 0) return taken;
      state_ = state_ == State::data ? State::complete : State::chunk_end;
      continue;
    }
    if (state_ == State::chunk_end) {
      if (rest.size() >= 1 && rest.substr(0, 2) != std::string_view("\r\n").substr(0, rest.size()))
        return Refusal{400, "a chunk is longer than it said"};
      if (rest.size() < 2) return taken;
      taken += 2;
      state_ = State::chunk_size;
      continue;
    }
    // A line: a chunk's size, or one of the trailer, which is read and forgotten.
    const std::size_t most = state_ == State::trailer ? most_trailer - trailer_bytes_ : most_chunk_line;
    const std::size_t feed = rest.substr(0, most).find('\n');
    if (feed == std::string_view::npos) {
      if (rest.size() >= most)
        return Refusal{state_ == State::trailer ? 431 : 400, "a line of the chunked body is too long"};
      return taken;
    }
    if (feed == 0 || rest[feed - 1] != '\r')
      return Refusal{400, "a line of the chunked body does not end in CR LF"};
    const std::string_view line = rest.substr(0, feed - 1);
    taken += feed + 1;
    if (state_ == State::chunk_size) {
      if (auto refusal = begin_chunk(line)) return *refusal;
    } else if (line.empty()) {
      state_ = State::complete;
    } else if (!is_field_line(line)) {
      return Refusal{400, "a line of the trailer is not: name, colon, value"};
    } else {
      trailer_bytes_ += feed + 1;
    }
  }
  return taken;
}

}  // namespace nibble::http
