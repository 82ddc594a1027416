// What systemd learns of a service of Type=notify: a datagram to the socket that NOTIFY_SOCKET names.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace nibble {

// "READY=1", "STOPPING=1"; several lines are allowed. Does nothing where `socket`, the value of
// NOTIFY_SOCKET, is empty. A failure says why; no service stops over it.
Status notify_service_manager(const std::string& socket, std::string_view state);

// To the socket of this process's environment; a failure is ignored.
void notify_service_manager(std::string_view state);

}  // namespace nibble
