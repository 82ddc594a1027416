// NIBBLE_CHECK(condition) or NIBBLE_CHECK(condition, "why this always holds"): an invariant of our own.
// When it is broken the process prints where and stops; a caller's mistake is a Status instead.
#pragma once

#include <string_view>

namespace nibble {

// What std::source_location is, by the builtins behind it: clang 14 cannot compile libstdc++'s own.
struct SourceLocation {
  const char* file = "";
  unsigned line = 0;
  const char* function = "";

  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          unsigned line = __builtin_LINE(),
                                          const char* function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
};

[[noreturn]] void check_failed(std::string_view condition, std::string_view message, SourceLocation where);

namespace check_detail {
inline void fail(std::string_view condition, SourceLocation where, std::string_view message = {}) {
  check_failed(condition, message, where);
}
}  // namespace check_detail

}  // namespace nibble

#define NIBBLE_CHECK(condition, ...)                                                                \
  do {                                                                                              \
    if (!(condition)) [[unlikely]]                                                                  \
      ::nibble::check_detail::fail(#condition,                                                      \
                                   ::nibble::SourceLocation::current() __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
