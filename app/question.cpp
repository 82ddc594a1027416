#include "app/question.h"

#include <string>

#include "app/terminal.h"

namespace nibble {

bool can_ask(const Console& console) {
  return is_terminal(::fileno(console.in)) && is_terminal(::fileno(console.err));
}

bool ask(std::string_view question, Console& console) {
  std::fprintf(console.err, "%.*s [y/N] ", static_cast<int>(question.size()), question.data());
  std::fflush(console.err);
  constexpr std::size_t most = 64;
  std::string reply;
  for (int c = std::fgetc(console.in); c != EOF && c != '\n'; c = std::fgetc(console.in)) {
    if (reply.size() < most) reply += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : static_cast<char>(c);
  }
  while (!reply.empty() && (reply.back() == '\r' || reply.back() == ' ')) reply.pop_back();
  return reply == "y" || reply == "yes";
}

}  // namespace nibble
