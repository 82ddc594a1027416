#include "ops/cuda/emulation/streams.h"

#include <utility>
#include <vector>

#include "ops/cuda/emulation/faults.h"

namespace nibble::emulation {
namespace {

struct Streams {
  std::mutex mutex;
  std::vector<Stream*> all;
};

Streams& streams() {
  static Streams known;
  return known;
}

}  // namespace

Stream::Stream() {
  const std::lock_guard lock(streams().mutex);
  streams().all.push_back(this);
}

Stream::~Stream() {
  wait();
  const std::lock_guard lock(streams().mutex);
  std::erase(streams().all, this);
}

void Stream::queue(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(work));
  ++queued_;
}

std::uint64_t Stream::queued() {
  const std::lock_guard lock(mutex_);
  return queued_;
}

void Stream::wait() {
  const std::lock_guard lock(mutex_);
  run_until(queued_);
}

void Stream::wait_for(std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  const bool may_go_on = device_count == 1 && first_device_here < 0 && !takes_orders();
  run_until(may_go_on && random_() % 2 == 0 ? queued_ : count);
}

void Stream::run_until(std::uint64_t count) {
  // What is queued runs on the stream's device, whichever the waiting thread has chosen.
  const int chosen = std::exchange(current_device, device);
  while (done_ < count) {
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    ++done_;
    work();
  }
  current_device = chosen;
}

void wait_for_all_streams() {
  std::vector<Stream*> all;
  {
    const std::lock_guard lock(streams().mutex);
    all = streams().all;
  }
  for (Stream* stream : all) {
    if (stream->device == current_device) stream->wait();
  }
}

}  // namespace nibble::emulation
