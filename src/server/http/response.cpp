#include "server/http/response.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/check.h"

namespace nibble::http {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 421: return "Misdirected Request";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "";  // a reader goes by the number
  }
}

std::string date_text(std::chrono::sys_seconds date) {
  // Always in English, whatever the locale.
  constexpr const char* days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                    "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const auto day = std::chrono::floor<std::chrono::days>(date);
  const std::chrono::year_month_day civil(day);
  const std::chrono::hh_mm_ss time(date - day);
  char text[64];
  const int size = std::snprintf(
      text, sizeof text, "%s, %02u %s %04d %02d:%02d:%02d GMT", days[std::chrono::weekday(day).c_encoding()],
      unsigned(civil.day()), months[unsigned(civil.month()) - 1], int(civil.year()),
      int(time.hours().count()), int(time.minutes().count()), int(time.seconds().count()));
  return {text, static_cast<std::size_t>(size)};
}

bool is_field(std::string_view name, std::string_view value) {
  const auto in_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  };
  const auto in_value = [](char c) {
    return c == '\t' || (static_cast<unsigned char>(c) >= ' ' && c != 0x7f);
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), in_name) &&
         std::all_of(value.begin(), value.end(), in_value);
}

std::string response_head(const Response& response, Ending ending, std::uint64_t content_length,
                          bool keep_alive) {
  std::string text = "HTTP/1.1 " + std::to_string(response.status) + " ";
  text += reason_phrase(response.status);
  text += "\r\n";
  const auto field = [&text](std::string_view name, std::string_view value) {
    NIBBLE_CHECK(is_field(name, value), name);
    text.append(name).append(": ").append(value).append("\r\n");
  };
  if (!response.content_type.empty()) field("Content-Type", response.content_type);
  for (const auto& [name, value] : response.fields) field(name, value);
  if (ending == Ending::length && response.status != 204)
    field("Content-Length", std::to_string(content_length));
  if (ending == Ending::chunked) field("Transfer-Encoding", "chunked");
  field("Connection", keep_alive ? "keep-alive" : "close");
  text += "\r\n";
  return text;
}

std::string chunk(std::string_view data) {
  NIBBLE_CHECK(!data.empty());
  char size[16];
  char* const end = std::to_chars(size, size + sizeof size, data.size(), 16).ptr;
  std::string text(size, end);
  text.append("\r\n").append(data).append("\r\n");
  return text;
}

}  // namespace nibble::http
