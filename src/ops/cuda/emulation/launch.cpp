#include "ops/cuda/emulation/block.h"
#include "ops/cuda/emulation/streams.h"

namespace nibble::emulation {
namespace {

// A device's last launch, if it may still run when the next one begins.
struct Last {
  std::mutex mutex;
  std::unique_ptr<Launch> launch;

  void finish() {
    if (launch != nullptr) std::exchange(launch, nullptr)->finish();
  }
  ~Last() { finish(); }
};

Last& last_of(int device) {
  static Last of_devices[most_devices];
  return of_devices[device];
}
Last& last() { return last_of(current_device); }

}  // namespace

// The next blocks that run at the same time.
void Launch::start_blocks(bool first) {
  clusters_ = std::vector<Cluster>(at_once() / grid.cluster);
  for (unsigned i = 0; i < at_once(); ++i, ++started_) {
    // A thread of its own for each: the kernel's static shared variables are a thread's.
    blocks_.emplace_back([this, first, number = started_, &cluster = clusters_[i / grid.cluster]] {
      Block(*this, number % grid.blocks_x, number / grid.blocks_x, cluster, first).run();
    });
  }
}

void Launch::join_blocks() {
  for (std::thread& block : blocks_) block.join();
  blocks_.clear();
}

void Launch::begin() {
  if (grid.blocks_x % grid.cluster != 0 || grid.cluster > most_at_once)
    stop("clusters whose blocks do not all run at the same time");
  if (goes_on_) return;
  beginning_ = at_once();
  start_blocks(true);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return beginning_ == 0; });
}

void Launch::finish() {
  {
    const std::lock_guard lock(mutex_);
    goes_on_ = true;
    changed_.notify_all();
  }
  join_blocks();
  while (started_ < grid.blocks_x * grid.blocks_y) {
    start_blocks(false);
    join_blocks();
  }
  // Who waits for its end takes what came before it to be over, too.
  if (grid.overlaps && !has_waited_) stop("a launch that has not waited for the one ahead of it");
}

void run(const Grid& grid, std::function<void()> kernel) {
  const std::lock_guard lock(last().mutex);
  auto launch = std::make_unique<Launch>(grid, std::move(kernel));
  launch->begin();
  last().finish();
  grid.overlaps ? static_cast<void>(last().launch = std::move(launch)) : launch->finish();
}

void finish_launches() { finish_launches_of(current_device); }
void finish_launches_of(int device) {
  const std::lock_guard lock(last_of(device).mutex);
  last_of(device).finish();
}

}  // namespace nibble::emulation
