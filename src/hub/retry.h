// When to try again: pure, so that a test sees each decision.
#pragma once

#include <chrono>
#include <ctime>
#include <optional>
#include <string_view>

namespace nibble {

// Waits of half a second, doubled each time, up to this one.
inline constexpr std::chrono::milliseconds kLongestWait{30'000};
// A server that asks for more is not waited for.
inline constexpr std::chrono::milliseconds kLongestAskedWait{300'000};
// Tries in a row that bring nothing.
inline constexpr int kMostFruitlessTries = 7;

// Whether an HTTP status may be another one later.
bool is_passing(int http_status);

// How long a server asks to wait: Retry-After in seconds or as a date, or the "t" of a RateLimit header with
// "r=0".
std::optional<std::chrono::milliseconds> asked_wait(std::optional<std::string_view> retry_after,
                                                    std::optional<std::string_view> rate_limit,
                                                    std::time_t now);

// The wait before the next try after `failures` in a row (1 or more); nothing: give up. `jitter` in [0, 1)
// spreads the tries of several connections.
std::optional<std::chrono::milliseconds> next_wait(int failures,
                                                   std::optional<std::chrono::milliseconds> asked,
                                                   double jitter);

}  // namespace nibble
