#include "ops/cuda/emulation/faults.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>

#include "base/check.h"

namespace nibble::emulation {
namespace {

struct Fault {
  std::string_view name;
  Call call;
  Outcome outcome;
};
constexpr Fault faults[] = {
    {"launch", Call::launch, Outcome::dropped}, {"copy", Call::copy, Outcome::dropped},
    {"wait", Call::wait, Outcome::lost},        {"hang", Call::wait, Outcome::hangs},
    {"graph", Call::graph, Outcome::cut_short}, {"allocation", Call::allocation, Outcome::refused}};

const char* order_file() { return std::getenv("EMULATED_GPU_FAULT"); }

// Of the one GPU that a process has.
class Health {
 public:
  Outcome outcome_of(Call call) {
    const std::lock_guard lock(mutex_);
    if (lost_) return Outcome::lost;
    take_order();
    if (ordered_ == nullptr || ordered_->call != call || --calls_left_ > 0) return Outcome::works;
    const Outcome outcome = ordered_->outcome;
    ordered_ = nullptr;
    lost_ = outcome == Outcome::dropped || outcome == Outcome::lost;
    return outcome;
  }

 private:
  void take_order() {
    if (ordered_ != nullptr || file_ == nullptr || access(file_, R_OK) != 0) return;
    std::ifstream order(file_);
    std::string name;
    order >> name >> calls_left_;
    ordered_ = std::find_if(std::begin(faults), std::end(faults),
                            [&](const Fault& fault) { return fault.name == name; });
    NIBBLE_CHECK(order && ordered_ != std::end(faults), "a test orders a fault that there is");
    unlink(file_);
  }

  const char* const file_ = order_file();
  std::mutex mutex_;
  const Fault* ordered_ = nullptr;
  int calls_left_ = 0;
  bool lost_ = false;
};

}  // namespace

bool takes_orders() { return order_file() != nullptr; }

Outcome outcome_of(Call call) {
  static Health health;
  return health.outcome_of(call);
}

}  // namespace nibble::emulation
