#include "text/harmony_parser.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/jinja/jinja_text.h"

namespace nibble {

std::optional<HarmonyTokens> HarmonyTokens::find(const Tokenizer& tokenizer) {
  HarmonyTokens tokens;
  const std::pair<std::string_view, TokenId*> wanted[] = {{"<|start|>", &tokens.start},
                                                          {"<|channel|>", &tokens.channel},
                                                          {"<|constrain|>", &tokens.constrain},
                                                          {"<|message|>", &tokens.message},
                                                          {"<|end|>", &tokens.end},
                                                          {"<|return|>", &tokens.return_},
                                                          {"<|call|>", &tokens.call}};
  for (const auto& [spelling, id] : wanted) {
    const auto found = tokenizer.control_id(spelling);
    if (!found) return std::nullopt;
    *id = *found;
  }
  return tokens;
}

HarmonyPart harmony_part(const HarmonyHeader& header) {
  const std::string& to = header.recipient;
  const bool to_a_tool = !to.empty() && to != "all" && to != "user" && to != "assistant";
  if (to.starts_with("functions.") || (to_a_tool && header.channel != "final" && !header.channel.empty())) {
    return HarmonyPart::tool_call;
  }
  return header.channel == "analysis" ? HarmonyPart::reasoning : HarmonyPart::answer;
}

namespace {

constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kConstrain = "<|constrain|>";

// A header longer than this is an answer without <|message|>; it surfaces instead of being held back for
// ever.
constexpr std::size_t kMaxHeaderBytes = 4096;

// White space as Unicode's property has it; Python counts four more separators.
bool is_white(char32_t c) { return jinja::is_space(c) && !(c >= 0x1C && c <= 0x1F); }

std::string trimmed(std::string_view text) {
  std::size_t begin = 0;
  while (begin < text.size() && is_white(jinja::code_point_at(text, begin).value)) {
    begin += jinja::code_point_at(text, begin).length;
  }
  std::size_t end = begin;  // after the last letter that is not white
  for (std::size_t at = begin; at < text.size();) {
    const auto c = jinja::code_point_at(text, at);
    at += c.length;
    if (!is_white(c.value)) end = at;
  }
  return std::string(text.substr(begin, end - begin));
}

std::vector<std::string> split_at_ascii_white(std::string_view text) {
  static constexpr std::string_view kWhite = " \t\n\f\r";
  std::vector<std::string> parts;
  for (std::size_t at = text.find_first_not_of(kWhite); at != text.npos;) {
    const std::size_t end = std::min(text.find_first_of(kWhite, at), text.size());
    parts.emplace_back(text.substr(at, end - at));
    at = text.find_first_not_of(kWhite, end);
  }
  return parts;
}

std::string join(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : " ") + part;
  return joined;
}

struct ReadHeader {
  HarmonyHeader header;
  std::string rest;  // what is no part of a header
};

// Cuts "<|channel|>name" out of the header. False: the marker stands there without a name.
bool take_channel(std::string& text, std::string& channel) {
  const std::size_t marker = text.find(kChannel);
  if (marker == text.npos) return true;
  const std::string_view after = std::string_view(text).substr(marker + kChannel.size());
  std::size_t end = 0;
  while (end < after.size()) {
    const auto c = jinja::code_point_at(after, end);
    if (is_white(c.value) || c.value == '<') break;
    end += c.length;
  }
  if (end == 0) return false;
  channel = after.substr(0, end);
  text.erase(marker, kChannel.size() + end);
  return true;
}

// Reads a header's text as openai-harmony does; nothing where that gives up. Without `with_recipient` all
// that follows role and channel is content.
std::optional<ReadHeader> read_header(std::string text, std::optional<Role> role, bool with_recipient) {
  ReadHeader read;
  if (!take_channel(text, read.header.channel)) return std::nullopt;
  text = trimmed(text);
  for (std::size_t at = text.find(kConstrain); at != text.npos;
       at = text.find(kConstrain, at + 1 + kConstrain.size())) {
    text.insert(at, " ");  // "to=foo<|constrain|>json" is two words
  }
  std::vector<std::string> parts = split_at_ascii_white(text);
  std::string role_text;
  if (role) {
    read.header.role = *role;
  } else {
    if (parts.empty()) return std::nullopt;
    role_text = parts[0];
    if (const auto known = parse_role(role_text)) {
      read.header.role = *known;
    } else if (parts.size() > 1 || role_text.starts_with("to=")) {
      parts.erase(parts.begin());  // an unknown author who addresses somebody is a tool
      read.header.role = Role::tool;
    } else {
      return std::nullopt;
    }
  }
  if (!parts.empty() && parts[0] == role_name(read.header.role)) parts.erase(parts.begin());
  if (with_recipient && !parts.empty()) {
    const auto recipient = [](const std::string& part) {
      return part.starts_with("to=") ? part.substr(3) : part;
    };
    const bool alone = parts.size() == 1;
    const std::string last = std::move(parts.back());
    parts.pop_back();
    if (last.starts_with("to=") || alone) {
      read.header.recipient = recipient(last);
    } else {
      read.header.content_type = last;
      read.header.recipient = recipient(parts.back());
      parts.pop_back();
    }
  }
  read.rest = join(parts);
  if (read.header.role == Role::tool) read.header.name = role_text;
  return read;
}

}  // namespace

HarmonyParser::HarmonyParser(const Tokenizer& tokenizer, const HarmonyTokens& tokens,
                             std::optional<Role> role, HiddenTokens hidden)
    : tokenizer_(tokenizer),
      tokens_(tokens),
      state_(role ? State::header : State::between),
      role_(role),
      decoder_(tokenizer, hidden) {}

void HarmonyParser::prompt_ended() {
  if (state_ != State::header || role_ || !header_controls_.empty()) return;
  role_ = parse_role(header_);
  if (role_) header_.clear();
}

// What surfaces of a header, less the control tokens in it.
std::string HarmonyParser::without_controls(std::string text) const {
  for (const TokenId control : header_controls_) {
    const std::string_view spelling = tokenizer_.bytes(control);
    if (const std::size_t at = text.find(spelling); at != text.npos) text.erase(at, spelling.size());
  }
  return trimmed(text);
}

void HarmonyParser::begin(HarmonyHeader header, std::string_view content, std::vector<HarmonyEvent>& events) {
  events.push_back({.kind = HarmonyEvent::Kind::begin, .header = std::move(header)});
  if (!content.empty()) events.push_back({.kind = HarmonyEvent::Kind::content, .text = std::string(content)});
  state_ = State::content;
  role_.reset();
  header_.clear();
  header_controls_.clear();
}

void HarmonyParser::end(TokenId token, std::vector<HarmonyEvent>& events) {
  if (std::string rest = decoder_.flush(); !rest.empty()) {
    events.push_back({.kind = HarmonyEvent::Kind::content, .text = std::move(rest)});
  }
  events.push_back({.kind = HarmonyEvent::Kind::end, .token = token});
  state_ = State::between;
}

void HarmonyParser::take_content(TokenId token, std::vector<HarmonyEvent>& events) {
  if (std::string text = decoder_.push(token); !text.empty()) {
    events.push_back({.kind = HarmonyEvent::Kind::content, .text = std::move(text)});
  }
}

void HarmonyParser::header_is_complete(std::vector<HarmonyEvent>& events) {
  const std::string text = to_valid_utf8(header_);
  if (auto read = read_header(text, role_, true)) {
    begin(std::move(read->header), without_controls(std::move(read->rest)), events);
  } else {
    begin({.role = role_.value_or(Role::assistant)}, without_controls(text), events);
  }
}

// The message, or the whole stream, ends inside of a header: what is no role and no channel was meant as
// text.
void HarmonyParser::header_is_cut_off(TokenId token, std::vector<HarmonyEvent>& events) {
  if (header_.empty()) {
    state_ = State::between;
    role_.reset();
    return;
  }
  const std::string text = to_valid_utf8(header_);
  if (auto read = read_header(text, role_, false)) {
    begin(std::move(read->header), without_controls(std::move(read->rest)), events);
  } else {
    begin({.role = role_.value_or(Role::assistant)}, without_controls(text), events);
  }
  end(token, events);
}

void HarmonyParser::push(TokenId token, std::vector<HarmonyEvent>& events) {
  switch (state_) {
    case State::between:
      if (token == tokens_.start) {
        state_ = State::header;
      } else if (!tokens_.ends_message(token)) {
        begin({}, {}, events);
        take_content(token, events);
      }
      break;
    case State::header:
      if (token == tokens_.message) {
        header_is_complete(events);
      } else if (tokens_.ends_message(token)) {
        header_is_cut_off(token, events);
      } else {
        header_ += tokenizer_.bytes(token);
        if (tokenizer_.is_hidden(token)) header_controls_.push_back(token);
        if (header_.size() > kMaxHeaderBytes) {
          begin({.role = role_.value_or(Role::assistant)}, without_controls(to_valid_utf8(header_)), events);
        }
      }
      break;
    case State::content:
      if (tokens_.ends_message(token)) {
        end(token, events);
      } else {
        take_content(token, events);
      }
      break;
  }
}

void HarmonyParser::finish(std::vector<HarmonyEvent>& events) {
  if (state_ == State::header) header_is_cut_off(-1, events);
  if (state_ == State::content) end(-1, events);
}

}  // namespace nibble
