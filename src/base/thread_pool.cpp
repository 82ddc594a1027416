#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/container_limits.h"
#include "base/thread_name.h"

namespace nibble {
namespace {

// Ops of one forward follow each other within microseconds, sleeping and waking costs tens of them; a longer
// spin would only take the CPU from somebody else.
constexpr int spins = 4000;

// Few enough that taking them costs nothing beside them, and that each is long enough for a stream of memory
// to get going.
constexpr int pieces_a_share = 8;
constexpr int most_threads = 65535 / pieces_a_share;

// Where part i of `parts` of [0, n) begins.
int part(int n, int i, int parts) { return static_cast<int>(std::int64_t{n} * i / parts); }

struct Left {
  std::uint32_t ticket;
  std::uint16_t front, back;
};
std::uint64_t packed(Left left) {
  return std::uint64_t{left.ticket} << 32 | std::uint64_t{left.front} << 16 | left.back;
}
Left unpacked(std::uint64_t left) {
  return {static_cast<std::uint32_t>(left >> 32), static_cast<std::uint16_t>(left >> 16),
          static_cast<std::uint16_t>(left)};
}

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

int usable_threads() { return usable_threads(static_cast<int>(allowed_cpus().size()), container_limits()); }

ThreadPool::ThreadPool(int threads, Pinning pinning)
    : shares_(static_cast<std::size_t>(threads > 0 ? threads : usable_threads())) {
  const std::size_t count = shares_.size();
  NIBBLE_CHECK(count <= most_threads);
  if (pinning == Pinning::one_cpu_each) {
    // The first CPU comes last: where the others are enough it is left to the calling thread.
    std::vector<int> cpus = allowed_cpus();
    std::erase_if(cpus, [](int cpu) { return cpu >= CPU_SETSIZE; });
    if (!cpus.empty()) std::rotate(cpus.begin(), cpus.begin() + 1, cpus.end());
    if (count <= cpus.size()) claims_ = CpuClaims::take(cpus, count - 1);
  }
  for (std::size_t share = 1; share < count; ++share) {
    workers_.emplace_back([this, share] { serve(static_cast<int>(share)); });
    if (pinned_to().empty()) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(pinned_to()[share - 1]), &one);
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

int ThreadPool::take_piece(Share& share, std::uint32_t ticket, End end) {
  std::uint64_t left = share.left.load(std::memory_order_acquire);
  for (;;) {
    const Left now = unpacked(left);
    if (now.ticket != ticket || now.front == now.back) return -1;
    Left then = now;
    const int piece = end == End::front ? then.front++ : --then.back;
    if (share.left.compare_exchange_weak(left, packed(then), std::memory_order_acq_rel,
                                         std::memory_order_acquire))
      return piece;
  }
}

void ThreadPool::do_pieces(int own, std::uint32_t ticket) {
  int done = 0;
  for (int i = 0; i < size(); ++i) {
    Share& share = shares_[static_cast<std::size_t>((own + i) % size())];
    for (int piece; (piece = take_piece(share, ticket, i == 0 ? End::front : End::back)) >= 0; ++done)
      work_.call(work_.body, part(work_.n, piece, pieces_), part(work_.n, piece + 1, pieces_));
  }
  if (done > 0) beat();
  if (done > 0 && unfinished_.fetch_sub(done, std::memory_order_acq_rel) == done && own != 0)
    unfinished_.notify_one();
}

void ThreadPool::run(const Work& work) {
  NIBBLE_CHECK(!busy_.exchange(true, std::memory_order_acquire), "one parallel_for at a time");
  if (work.n == 1 || workers_.empty()) {
    work.call(work.body, 0, work.n);
    beat();
  } else {
    work_ = work;
    pieces_ = std::min(work.n, size() * pieces_a_share);
    unfinished_.store(pieces_, std::memory_order_relaxed);
    const std::uint32_t ticket = ticket_.load(std::memory_order_relaxed) + 1;
    for (int share = 0; share < size(); ++share) {
      const Left left{ticket, static_cast<std::uint16_t>(part(pieces_, share, size())),
                      static_cast<std::uint16_t>(part(pieces_, share + 1, size()))};
      shares_[static_cast<std::size_t>(share)].left.store(packed(left), std::memory_order_release);
    }
    ticket_.store(ticket, std::memory_order_release);
    ticket_.notify_all();
    do_pieces(0, ticket);
    for (int left = unfinished_.load(std::memory_order_acquire); left != 0;
         left = unfinished_.load(std::memory_order_acquire)) {
      wait_while(unfinished_, left);
    }
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::serve(int share) {
  name_this_thread("worker");
  for (std::uint32_t seen = 0;;) {
    wait_while(ticket_, seen);
    seen = ticket_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_acquire)) return;
    do_pieces(share, seen);
  }
}

}  // namespace nibble
