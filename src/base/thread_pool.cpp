#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace nibble {
namespace {

// Ops of one forward follow each other within microseconds, sleeping and waking costs tens of them; a longer
// spin would only take the CPU from somebody else.
constexpr int spins = 4000;

template <class Value>
void wait_while(const std::atomic<Value>& value, Value old) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    __builtin_ia32_pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // A machine may have more CPUs than cpu_set_t holds; the call fails then and a larger set is tried.
  for (int capacity = CPU_SETSIZE; capacity <= 1 << 20; capacity *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(capacity));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    CPU_ZERO_S(bytes, set);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (known) break;
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

ThreadPool::ThreadPool(int threads)
    : claims_(threads > 0 ? static_cast<std::size_t>(threads) : allowed_cpus().size()) {
  const std::vector<int> cpus = allowed_cpus();
  const std::size_t count = claims_.size();
  for (std::size_t share = 1; share < count; ++share) {
    workers_.emplace_back([this, share] { serve(static_cast<int>(share)); });
    if (count > cpus.size() || cpus[share] >= CPU_SETSIZE) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(cpus[share]), &one);
    // Best effort: a sandbox may forbid it, and nothing but speed depends on it.
    (void)pthread_setaffinity_np(workers_.back().native_handle(), sizeof(one), &one);
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_release);
  ticket_.fetch_add(1, std::memory_order_release);
  ticket_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::claim_and_do(int share, unsigned ticket) {
  unsigned before = ticket - 1;
  if (!claims_[static_cast<std::size_t>(share)].compare_exchange_strong(before, ticket,
                                                                        std::memory_order_acq_rel))
    return;
  const std::int64_t n = work_.n, shares = size();
  const int begin = static_cast<int>(n * share / shares);
  const int end = static_cast<int>(n * (share + 1) / shares);
  if (begin < end) work_.call(work_.body, begin, end);
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1 && share != 0) unfinished_.notify_one();
}

void ThreadPool::run(const Work& work) {
  NIBBLE_CHECK(!busy_.exchange(true, std::memory_order_acquire), "one parallel_for at a time");
  if (work.n == 1 || workers_.empty()) {
    work.call(work.body, 0, work.n);
  } else {
    work_ = work;
    unfinished_.store(size(), std::memory_order_relaxed);
    const unsigned ticket = ticket_.fetch_add(1, std::memory_order_release) + 1;
    ticket_.notify_all();
    for (int share = 0; share < size(); ++share) claim_and_do(share, ticket);
    for (int left = unfinished_.load(std::memory_order_acquire); left != 0;
         left = unfinished_.load(std::memory_order_acquire)) {
      wait_while(unfinished_, left);
    }
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::serve(int share) {
  for (unsigned seen = 0;;) {
    wait_while(ticket_, seen);
    seen = ticket_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_acquire)) return;
    claim_and_do(share, seen);
  }
}

}  // namespace nibble
