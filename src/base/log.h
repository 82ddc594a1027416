// The log: lines of a message and named values, written by a thread of its own. Whoever logs never waits for
// the disk or the terminal: a full queue drops its oldest lines, and the next line written says how many.
//
// A stranger's bytes cannot forge a line or steer a terminal: whatever a message or a value holds, a line has
// printable ASCII alone, as escapes where need be. Strangers' text belongs in values, which are quoted; a
// message is words of ours.
//
//   log.info("request finished", {{"id", id}, {"model", name}, {"tokens", 17}});
//
//   2026-11-21T02:34:06.123Z info request finished id=7 model="demo" tokens=17
//   {"time":"2026-11-21T02:34:06.123Z","level":"info","message":"request finished","id":7,...}
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/clock.h"

namespace nibble {

enum class LogLevel : std::uint8_t { debug, info, warning, error, off };
std::string_view log_level_name(LogLevel level);

enum class LogFormat : std::uint8_t { plain, json };

// Receives whole lines, each with its newline, on the log's thread.
using LogWriter = std::function<void(std::string_view line)>;
void write_to_stderr(std::string_view line);

struct LogOptions {
  LogLevel level = LogLevel::info;  // the least that is written
  LogFormat format = LogFormat::plain;
  std::size_t queue_lines = 8192;
  LogWriter write = write_to_stderr;
};

// The views live during the call alone. A field without a value is left out of the line.
struct LogField {
  template <std::signed_integral T>
  LogField(std::string_view field, T number) : name(field), value(std::int64_t{number}) {}
  template <std::unsigned_integral T>
  LogField(std::string_view field, T number) : name(field), value(std::uint64_t{number}) {}
  LogField(std::string_view field, bool boolean) : name(field), value(boolean) {}
  LogField(std::string_view field, double number) : name(field), value(number) {}
  LogField(std::string_view field, std::string_view text) : name(field), value(text) {}
  LogField(std::string_view field, const std::string& text) : name(field), value(std::string_view(text)) {}
  LogField(std::string_view field, const char* text) : name(field), value(std::string_view(text)) {}
  LogField(std::string_view field, std::optional<std::string_view> text) : name(field) {
    if (text) value = *text;
  }
  LogField(std::string_view field, std::optional<int> number) : name(field) {
    if (number) value = std::int64_t{*number};
  }
  LogField(std::string_view field, std::optional<double> number) : name(field) {
    if (number) value = *number;
  }

  std::string_view name;
  std::optional<std::variant<std::int64_t, std::uint64_t, bool, double, std::string_view>> value;
};
using LogFields = std::initializer_list<LogField>;

// Any thread may log.
class Log {
 public:
  // The clock outlives the log.
  Log(LogOptions options, const Clock& clock);
  // Writes what is queued.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool enabled(LogLevel level) const { return level >= level_; }
  void write(LogLevel level, std::string_view message, LogFields fields = {});
  void debug(std::string_view message, LogFields fields = {}) { write(LogLevel::debug, message, fields); }
  void info(std::string_view message, LogFields fields = {}) { write(LogLevel::info, message, fields); }
  void warning(std::string_view message, LogFields fields = {}) { write(LogLevel::warning, message, fields); }
  void error(std::string_view message, LogFields fields = {}) { write(LogLevel::error, message, fields); }

  // Lines dropped so far because the queue was full.
  std::uint64_t dropped() const;

 private:
  struct Backend;

  LogLevel level_;
  LogFormat format_;
  const Clock& clock_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace nibble
