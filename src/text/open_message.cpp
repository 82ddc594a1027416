#include "text/open_message.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view white_space = " \t\n\v\f\r";

std::string_view without_white_space_before(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(white_space), text.size()));
  return text;
}
std::string_view without_white_space_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(white_space) + 1);
}

// The last bytes that the template did not write.
TextSpan last_of_request(const RenderedPrompt& prompt) {
  TextSpan span{.begin = 0, .end = prompt.text.size()};
  for (auto trusted = prompt.trusted.rbegin(); trusted != prompt.trusted.rend(); ++trusted) {
    span.begin = trusted->end;
    if (span.begin < span.end) return span;
    span.end = trusted->begin;
  }
  return {.begin = 0, .end = span.end};
}

}  // namespace

Status leave_open(const Message& last, RenderedPrompt& prompt) {
  if (!last.tool_calls.empty())
    return invalid_argument("the last message calls a tool: it cannot be continued");
  const std::string_view content =
      without_white_space_before(last.content ? std::string_view(*last.content) : std::string_view());
  if (content.empty()) return invalid_argument("the last message has no text to continue");
  const TextSpan span = last_of_request(prompt);
  const std::string_view shown = std::string_view(prompt.text).substr(span.begin, span.end - span.begin);
  const std::string_view bare = without_white_space_behind(content);
  const std::string_view bare_shown = without_white_space_behind(shown);
  if (!bare_shown.ends_with(bare)) {
    return invalid_argument(
        "the chat template does not end with the last message's text as it is, so it cannot be continued");
  }
  const std::size_t begin = bare_shown.size() - bare.size();
  // White space at its end counts where the template left it.
  const std::size_t length = shown.substr(begin).starts_with(content) ? content.size() : bare.size();
  prompt.text.resize(span.begin + begin + length);
  while (!prompt.trusted.empty() && prompt.trusted.back().begin >= prompt.text.size())
    prompt.trusted.pop_back();
  return {};
}

}  // namespace nibble
