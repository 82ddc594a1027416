// Threads that split a range of indices the same way every time: share s of a range is the same indices
// whatever the timing, so bits cannot depend on who was faster, and as a rule the same thread runs it, so
// caches stay warm. A share whose thread has not woken up is run by the caller: on a busy machine waiting for
// a thread that the system keeps off its CPU would cost far more than the share.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace nibble {

// The CPUs this process may run on, ascending (containers and taskset narrow them).
std::vector<int> allowed_cpus();

class ThreadPool {
 public:
  // `threads` counts the calling thread, which takes the first share; 0 means one for each allowed CPU. The
  // others are pinned, one a CPU, unless there are more of them than CPUs; the caller stays where it is.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // body(begin, end) for contiguous shares of [0, n), as many as there are threads; returns when all are
  // done, and then everything they wrote is visible. One caller at a time; never from inside a body.
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

  void run(const Work& work);
  void serve(int share);
  void claim_and_do(int share, unsigned ticket);

  Work work_;  // written by the caller before ticket_ moves; read by who holds a claim of that ticket
  std::atomic<unsigned> ticket_ = 0;  // one more for each run
  // The last ticket a share was claimed for. Every share is claimed once a ticket, so a thread that wakes up
  // late finds its ticket taken and cannot touch a later run.
  std::vector<std::atomic<unsigned>> claims_;
  std::atomic<int> unfinished_ = 0;  // shares of the current ticket
  std::atomic<bool> busy_ = false;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace nibble
