// NIBBLE_CHECK(condition) or NIBBLE_CHECK(condition, "why this always holds"): an invariant of our own.
// When it is broken the process prints where and stops; a caller's mistake is a Status instead.
#pragma once

#include <source_location>
#include <string_view>

namespace nibble {

[[noreturn]] void check_failed(std::string_view condition, std::string_view message,
                               std::source_location where);

namespace check_detail {
inline void fail(std::string_view condition, std::source_location where, std::string_view message = {}) {
  check_failed(condition, message, where);
}
}  // namespace check_detail

}  // namespace nibble

#define NIBBLE_CHECK(condition, ...)                                                                        \
  do {                                                                                                      \
    if (!(condition)) [[unlikely]]                                                                          \
      ::nibble::check_detail::fail(#condition, std::source_location::current() __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
