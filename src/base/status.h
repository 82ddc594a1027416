// Status and Result: how a caller's mistake or a failure of the outside world travels.
// A broken invariant of our own is a CHECK (check.h), never a Status.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace nibble {

enum class StatusCode {
  ok,
  invalid_argument,    // the command line, a request or an option; process exit code 2
  not_found,           // a named file or model does not exist; exit code 3
  broken_model,        // the model's files are damaged or contradict each other; exit code 3
  io_error,            // the operating system refused; exit code 1
  resource_exhausted,  // no memory, no pages, a full queue; exit code 1
  cancelled,           // the user interrupted; exit code 130
  internal,            // exit code 1
};

std::string_view status_code_name(StatusCode code);

// What went wrong, in one sentence that names the culprit and what would work.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    NIBBLE_CHECK(code != StatusCode::ok);
  }

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same failure seen from one level up: "<context>: <message>".
  Status with_context(std::string_view context) const;
  // What the process should return to the shell.
  int exit_code() const;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

inline Status invalid_argument(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}
inline Status not_found(std::string message) { return {StatusCode::not_found, std::move(message)}; }
inline Status broken_model(std::string message) { return {StatusCode::broken_model, std::move(message)}; }
inline Status io_error(std::string message) { return {StatusCode::io_error, std::move(message)}; }
inline Status resource_exhausted(std::string message) {
  return {StatusCode::resource_exhausted, std::move(message)};
}
inline Status internal_error(std::string message) { return {StatusCode::internal, std::move(message)}; }

// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { NIBBLE_CHECK(!status_.ok()); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    NIBBLE_CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    NIBBLE_CHECK(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    NIBBLE_CHECK(ok(), status_.message());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace nibble

#define NIBBLE_CONCAT_INNER(a, b) a##b
#define NIBBLE_CONCAT(a, b) NIBBLE_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expression` (a Status) is not ok.
#define NIBBLE_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                            \
    if (::nibble::Status nibble_status = (expression); !nibble_status.ok()) return nibble_status; \
  } while (false)

// Declares or assigns `target` from a Result, or returns its Status: NIBBLE_ASSIGN(auto file, open(path));
#define NIBBLE_ASSIGN(target, expression) \
  NIBBLE_ASSIGN_INNER(NIBBLE_CONCAT(nibble_result_, __LINE__), target, expression)
#define NIBBLE_ASSIGN_INNER(result, target, expression) \
  auto result = (expression);                           \
  if (!result.ok()) return result.status();             \
  target = std::move(result).value()
