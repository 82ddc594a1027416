// The queue and the thread are spdlog's, header-only with header-only fmt: their packages have no static
// libraries, and the program is to need none. Lines are made here, so spdlog sees finished text.
#define FMT_HEADER_ONLY
#define SPDLOG_NO_EXCEPTIONS
#include "base/log.h"

#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/sinks/base_sink.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "base/utf8.h"

namespace nibble {
namespace {

// More of one value than anybody reads; a request's text is no log.
constexpr std::size_t kMaxValueBytes = 1024;

std::string time_text(Clock::WallTime time) {
  const auto milliseconds = std::chrono::floor<std::chrono::milliseconds>(time).time_since_epoch().count();
  const auto seconds = static_cast<time_t>(milliseconds / 1000 - (milliseconds % 1000 < 0 ? 1 : 0));
  struct tm parts {};
  gmtime_r(&seconds, &parts);
  char text[64];
  const int size = std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
                                 parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                                 parts.tm_min, parts.tm_sec, static_cast<int>(milliseconds - seconds * 1000));
  return {text, static_cast<std::size_t>(size)};
}

struct Line {
  std::string_view level, message;
  LogFields fields;
  Clock::WallTime time;
};

std::string plain_line(const Line& line) {
  std::string text = time_text(line.time);
  text.append(" ").append(line.level).append(" ").append(escape(line.message));
  for (const LogField& field : line.fields) {
    if (!field.value) continue;
    text.append(" ").append(field.name).append("=");
    std::visit(
        [&text](const auto& value) {
          if constexpr (std::is_same_v<decltype(value), const std::string_view&>) {
            text += quote(value, kMaxValueBytes);
          } else {
            JsonWriter(text).value(value);
          }
        },
        *field.value);
  }
  return text += '\n';
}

// The JSON with everything that is not printable ASCII as \u escapes. JSON has such characters inside strings
// only; a terminal takes some of them (U+009B, U+202E) as commands.
std::string ascii_json(std::string_view json) {
  constexpr std::string_view hex = "0123456789abcdef";
  std::string text;
  const auto escape_unit = [&](char32_t unit) {
    text += {'\\', 'u', hex[unit >> 12], hex[unit >> 8 & 0xf], hex[unit >> 4 & 0xf], hex[unit & 0xf]};
  };
  for (std::size_t at = 0; at < json.size();) {
    const CodePoint code = decode_valid_utf8(json.data() + at);
    at += code.length;
    if (code.value < 0x7f) {
      text += static_cast<char>(code.value);
    } else if (code.value < 0x10000) {
      escape_unit(code.value);
    } else {
      escape_unit(0xd800 + ((code.value - 0x10000) >> 10));
      escape_unit(0xdc00 + ((code.value - 0x10000) & 0x3ff));
    }
  }
  return text;
}

std::string json_line(const Line& line) {
  std::string text;
  JsonWriter writer(text);
  writer.begin_object().member("time", time_text(line.time)).member("level", line.level);
  writer.member("message", line.message);
  for (const LogField& field : line.fields) {
    if (!field.value) continue;
    writer.key(field.name);
    std::visit(
        [&writer](const auto& value) {
          if constexpr (std::is_same_v<decltype(value), const std::string_view&>) {
            writer.value(value.substr(0, kMaxValueBytes));
          } else {
            writer.value(value);
          }
        },
        *field.value);
  }
  writer.end_object();
  return ascii_json(text) + "\n";
}

std::string format_line(LogFormat format, const Line& line) {
  return format == LogFormat::json ? json_line(line) : plain_line(line);
}

class Sink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  Sink(LogWriter write, LogFormat format, const Clock& clock)
      : write_(std::move(write)), format_(format), clock_(clock) {}

  // The pool whose thread calls this sink, so it lives in every call.
  spdlog::details::thread_pool* pool = nullptr;

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::uint64_t dropped = pool->overrun_counter();
    if (dropped != reported_) {
      write_(format_line(format_, {.level = log_level_name(LogLevel::warning),
                                   .message = "lines were dropped: the log could not be written as fast",
                                   .fields = {{"lines", dropped - reported_}},
                                   .time = clock_.wall_time()}));
      reported_ = dropped;
    }
    write_({message.payload.data(), message.payload.size()});
  }
  void flush_() override {}

  LogWriter write_;
  LogFormat format_;
  const Clock& clock_;
  std::uint64_t reported_ = 0;
};

}  // namespace

std::string_view log_level_name(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return "debug";
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
    case LogLevel::off: return "off";
  }
  NIBBLE_CHECK(false, "unknown log level");
  return "";
}

void write_to_stderr(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody is left to be told
    line.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Members are destroyed last to first: the pool joins its thread, which uses the other two.
struct Log::Backend {
  std::shared_ptr<Sink> sink;
  std::shared_ptr<spdlog::async_logger> logger;
  std::shared_ptr<spdlog::details::thread_pool> pool;
};

Log::Log(LogOptions options, const Clock& clock)
    : level_(options.level), format_(options.format), clock_(clock), backend_(std::make_unique<Backend>()) {
  NIBBLE_CHECK(options.queue_lines > 0 && options.write != nullptr);
  backend_->sink = std::make_shared<Sink>(std::move(options.write), format_, clock_);
  backend_->pool = std::make_shared<spdlog::details::thread_pool>(options.queue_lines, 1);
  backend_->sink->pool = backend_->pool.get();
  backend_->logger = std::make_shared<spdlog::async_logger>("", backend_->sink, backend_->pool,
                                                            spdlog::async_overflow_policy::overrun_oldest);
}

Log::~Log() = default;

void Log::write(LogLevel level, std::string_view message, LogFields fields) {
  if (!enabled(level) || level == LogLevel::off) return;
  const std::string line = format_line(
      format_,
      {.level = log_level_name(level), .message = message, .fields = fields, .time = clock_.wall_time()});
  backend_->logger->log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

std::uint64_t Log::dropped() const { return backend_->pool->overrun_counter(); }

}  // namespace nibble
