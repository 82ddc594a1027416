#include "core/request.h"

#include "base/check.h"

namespace nibble {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "none";
    case FinishReason::stop: return "stop";
    case FinishReason::length:
    case FinishReason::cut: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::error: return "error";
    case FinishReason::timeout: return "timeout";
  }
  NIBBLE_CHECK(false, "unknown finish reason");
  return "";
}

}  // namespace nibble
