#include "app/serve_ranks.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "app/other_process.h"
#include "app/stop_signals.h"
#include "app/supervisor.h"

namespace nibble {
namespace {

[[noreturn]] void end_at_once(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

// The first process needs these ranks for what it still answers. So an order to stop waits for that process
// to end. The wait is a little longer than the first one's own shutdown timeout.
void stop(int orders, std::chrono::seconds patience) {
  if (orders > 1) end_at_once(0);
  std::thread([patience] {
    std::this_thread::sleep_for(patience);
    end_at_once(0);
  }).detach();
}

// Another process has gone. The engine says which and ends, unless a thread or a GPU here keeps it; the
// others wait for the next one.
void end_soon(std::shared_ptr<const std::atomic<bool>> is_to_end) {
  std::thread([is_to_end] {
    constexpr std::chrono::seconds longer_than_gpus_wait{3};
    std::this_thread::sleep_for(longer_than_gpus_wait);
    if (*is_to_end) end_at_once(0);
    std::fprintf(stderr, "error: another process was lost, and a step here does not end\n");
    end_at_once(1);
  }).detach();
}

}  // namespace

Status serve_ranks(const ServeOptions& options, Console& console) {
  constexpr std::chrono::seconds longer{5};
  const std::chrono::seconds patience = std::chrono::seconds(options.shutdown_timeout) + longer;
  Child self;
  if (!options.no_supervise) {
    self = supervise({.shutdown_timeout = patience + std::chrono::seconds(1),
                      .log = options.log(),
                      .reload = {},
                      .at_end = {}});
  }
  std::optional<StopSignals> signals, failures;
  if (self.shared != nullptr) {
    signals.emplace({stop_order()});
    failures.emplace({fail_order()});
  } else {
    signals.emplace({SIGINT, SIGTERM});
  }
  if (self.role == ChildRole::stand_in) {  // nobody asks it anything
    std::promise<void> stopped;
    signals->watch([&, done = false](int) mutable {
      if (!std::exchange(done, true)) stopped.set_value();
    });
    stopped.get_future().wait();
    return {};
  }
  const auto is_to_end = std::make_shared<std::atomic<bool>>(false);
  signals->watch([&](int orders) {
    *is_to_end = true;
    stop(orders, patience);
  });
  // It was stopped for so long that the first has given it up, or will.
  if (failures) failures->watch([](int) { end_at_once(1); });
  const auto ready = [&] {
    const bool first = self.shared == nullptr || !self.shared->served.exchange(true);
    std::fprintf(console.err, "process %d of %d runs steps of the first, at %s%s\n", options.engine.process,
                 options.engine.processes, options.engine.first_process.c_str(), first ? "" : " again");
  };
  const Status outcome =
      *run_steps_of_another(options.engine, {.ready = ready, .lost = [&] { end_soon(is_to_end); }});
  signals.reset();
  failures.reset();
  // The first may have gone without a word, being told to end as well.
  return *is_to_end ? Status() : outcome;
}

}  // namespace nibble
