#include "base/status.h"

namespace nibble {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::ok: return "ok";
    case StatusCode::invalid_argument: return "invalid_argument";
    case StatusCode::not_found: return "not_found";
    case StatusCode::broken_model: return "broken_model";
    case StatusCode::io_error: return "io_error";
    case StatusCode::resource_exhausted: return "resource_exhausted";
    case StatusCode::cancelled: return "cancelled";
    case StatusCode::internal: return "internal";
  }
  NIBBLE_CHECK(false, "unknown status code");
  return "";
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return {code_, std::string(context) + ": " + message_};
}

int Status::exit_code() const {
  switch (code_) {
    case StatusCode::ok: return 0;
    case StatusCode::invalid_argument: return 2;
    case StatusCode::not_found:
    case StatusCode::broken_model: return 3;
    case StatusCode::cancelled: return 130;
    case StatusCode::io_error:
    case StatusCode::resource_exhausted:
    case StatusCode::internal: return 1;
  }
  NIBBLE_CHECK(false, "unknown status code");
  return 1;
}

}  // namespace nibble
