// Threads that split a range of indices the same way every time: it is cut into the same pieces whatever the
// timing, so bits cannot depend on who was faster. Each thread has a share of consecutive pieces, which it
// takes from the front, so caches stay warm; whoever has done its own takes from the back of another's:
// waiting for a thread that the system keeps off its CPU, or that has not woken up, would cost far more than
// its pieces.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/cpu_claims.h"

namespace nibble {

// The CPUs this process may run on, ascending (containers and taskset narrow them).
std::vector<int> allowed_cpus();
// Threads that can run at the same time: one for each of those CPUs, or what a container's quota lets run.
int usable_threads();

class ThreadPool {
 public:
  enum class Pinning : std::uint8_t { none, one_cpu_each };

  // `threads` counts the calling thread, which takes the first share; 0 means usable_threads(). Pinned are
  // the others, each to an allowed CPU that no other pool of any process claims (base/cpu_claims.h); where
  // there are too few of those, none is.
  explicit ThreadPool(int threads, Pinning pinning = Pinning::none);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Of the threads beside the calling one, in order; empty: they are not pinned.
  const std::vector<int>& pinned_to() const { return claims_.cpus(); }

  // What a watcher counts: the runs and pieces that were done, and the beats of a WorkMeter. A pool whose
  // threads compute without a beat does not get on. Any thread may ask.
  std::uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }
  void beat() { beats_.fetch_add(1, std::memory_order_relaxed); }

  // body(begin, end) for contiguous pieces of [0, n), some for each thread; returns when all are done, and
  // then everything they wrote is visible. One caller at a time; never from inside a body.
  template <class Body>
  void parallel_for(int n, Body&& body) {
    if (n <= 0) return;
    run({.n = n,
         .call = [](void* object, int begin,
                    int end) { (*static_cast<std::remove_reference_t<Body>*>(object))(begin, end); },
         .body = const_cast<void*>(static_cast<const void*>(&body))});
  }

 private:
  struct Work {
    int n = 0;
    void (*call)(void* body, int begin, int end) = nullptr;
    void* body = nullptr;
  };

  // A share's pieces that nobody has taken, [front, back), with the ticket they are of: a thread that wakes
  // up late finds another ticket there and cannot touch a later run.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> left = 0;
  };
  enum class End : std::uint8_t { front, back };

  void run(const Work& work);
  void serve(int share);
  // Works as the share's thread, until no piece of the ticket is left to take.
  void do_pieces(int share, std::uint32_t ticket);
  // A piece of the share, or -1.
  int take_piece(Share& share, std::uint32_t ticket, End end);

  // Written by the caller before ticket_ moves; read by who has taken a piece of that ticket.
  Work work_;
  int pieces_ = 0;
  std::atomic<std::uint32_t> ticket_ = 0;  // one more for each run
  std::vector<Share> shares_;
  std::atomic<int> unfinished_ = 0;  // pieces of the current ticket
  alignas(64) std::atomic<std::uint64_t> beats_ = 0;
  alignas(64) std::atomic<bool> busy_ = false;
  std::atomic<bool> stopping_ = false;
  CpuClaims claims_;
  std::vector<std::thread> workers_;
};

// Of one thread within a piece: a beat of the pool for about so much work. A piece may take seconds, and then
// nothing else tells it from an endless loop. Kernels without vectors do a beat's work in a hundredth of a
// second, and threads with vectors do not meet at the counter often.
class WorkMeter {
 public:
  static constexpr std::int64_t products_a_beat = std::int64_t{8} << 20;

  explicit WorkMeter(ThreadPool& pool) : pool_(pool) {}
  // Products (of two numbers) that were added up.
  void add(std::int64_t products) {
    if ((products_ += products) < products_a_beat) return;
    products_ = 0;
    pool_.beat();
  }

 private:
  ThreadPool& pool_;
  std::int64_t products_ = 0;
};

}  // namespace nibble
