// Threads that split a range of indices the same way every time: index i is run by the same thread whatever
// the timing, so that caches stay warm and bits cannot depend on who was faster. No stealing, no queue.
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

  // body(begin, end) for contiguous shares of [0, n), at most one a thread; returns when all are done, and
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

  void run(const Work& work);
  void serve(int share);
  void do_share(int share) const;

  Work work_;                         // written by the caller before ticket_ moves, read by the workers after
  std::atomic<unsigned> ticket_ = 0;  // one more for each run
  std::atomic<int> unfinished_ = 0;   // workers still busy with the current ticket
  std::atomic<bool> busy_ = false;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace nibble
