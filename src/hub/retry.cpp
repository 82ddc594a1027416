#include "hub/retry.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace nibble {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{500};
constexpr long kMostSeconds = 1'000'000;

std::optional<milliseconds> seconds_of(std::string_view text) {
  long seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || seconds < 0) return std::nullopt;
  return milliseconds(std::min(seconds, kMostSeconds) * 1000);
}

// "Wed, 21 Oct 2015 07:28:00 GMT"
std::optional<milliseconds> until_date(std::string_view text, std::time_t now) {
  std::tm date{};
  const char* const end = strptime(std::string(text).c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date);
  if (end == nullptr) return std::nullopt;
  const std::time_t then = timegm(&date);
  return milliseconds(std::clamp<long>(static_cast<long>(then - now), 0, kMostSeconds) * 1000);
}

}  // namespace

bool is_passing(int http_status) {
  return http_status == 408 || http_status == 425 || http_status == 429 || http_status == 500 ||
         http_status == 502 || http_status == 503 || http_status == 504;
}

std::optional<milliseconds> asked_wait(std::optional<std::string_view> retry_after,
                                       std::optional<std::string_view> rate_limit, std::time_t now) {
  if (retry_after) {
    if (const std::optional<milliseconds> wait = seconds_of(*retry_after)) return wait;
    return until_date(*retry_after, now);
  }
  if (!rate_limit || rate_limit->find("r=0;") == rate_limit->npos) return std::nullopt;
  const std::size_t at = rate_limit->find("t=");
  if (at == rate_limit->npos) return std::nullopt;
  const std::string_view rest = rate_limit->substr(at + 2);
  return seconds_of(rest.substr(0, rest.find_first_not_of("0123456789")));
}

std::optional<milliseconds> next_wait(int failures, std::optional<milliseconds> asked, double jitter) {
  if (failures >= kMostFruitlessTries || (asked && *asked > kLongestAskedWait)) return std::nullopt;
  const milliseconds doubled = std::min(kFirstWait * (1 << std::clamp(failures - 1, 0, 10)), kLongestWait);
  const auto spread =
      milliseconds(static_cast<long>(static_cast<double>(doubled.count()) * (0.5 + 0.5 * jitter)));
  if (!asked) return spread;
  return *asked + milliseconds(static_cast<long>(250 * jitter));
}

}  // namespace nibble
