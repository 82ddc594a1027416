// A parent that does next to nothing and therefore survives: it holds what all its children share, starts the
// engine's process, and starts it again when it dies. Meanwhile another child of its answers. The parent has
// one thread and no model.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>

#include "base/log.h"
#include "server/suspects.h"

namespace nibble {

// In memory that parent and children have in common.
struct SharedState {
  std::atomic<bool> served = false;  // an engine has been ready once
  Suspects suspects;
};

struct SupervisorOptions {
  std::chrono::seconds shutdown_timeout{30};   // that the engine gives what runs
  std::chrono::milliseconds first_pause{100};  // before a restart; it doubles up to
  std::chrono::milliseconds longest_pause{30'000};
  LogOptions log;
  // What SIGHUP does in the parent, before it tells the children: those that come later find what was read.
  std::function<void()> reload;
  std::function<void()> at_end;  // once, when the program ends in whatever way but SIGKILL
};

enum class ChildRole : std::uint8_t {
  engine,
  stand_in,  // answers while there is no engine
};

struct Child {
  ChildRole role = ChildRole::engine;
  SharedState* shared = nullptr;
};

// What a child gets for each request to end. Not SIGTERM or SIGINT, which a terminal or a service manager
// sends to parent and child alike, so that one request would count twice.
inline int stop_order() { return SIGRTMIN; }
// What a child gets to read its keys and certificates again. LastWords has the signal between.
inline int reload_order() { return SIGRTMIN + 2; }

// What an engine gets that was stopped (SIGSTOP) for too long and goes on: whom it serves is told that it
// ends, and another takes its place.
inline int fail_order() { return SIGRTMIN + 3; }

// Like fork(): returns in every child. The parent stays inside until its last child has ended, and then ends
// the process as that child did. What died after it had served is started again; what dies before, or says
// why it cannot serve, is not. To be called before any thread begins.
Child supervise(const SupervisorOptions& options);

}  // namespace nibble
