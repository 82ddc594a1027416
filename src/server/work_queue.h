// Work that would hold up the I/O thread: parsing, templates, tokenizing. A few threads, first come first
// served, and so many that wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace nibble {

class WorkQueue {
 public:
  WorkQueue(int threads, int most_waiting);
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  ~WorkQueue();  // what has not begun is dropped

  // False when the queue is full; then nothing comes of it.
  [[nodiscard]] bool add(std::function<void()> work);
  // make runs here, and finish, with what it made, where post brings it. What finish holds is let go of
  // there, too: it may belong to that thread.
  template <class Made>
  [[nodiscard]] bool add(std::function<Made()> make, std::function<void(std::function<void()>)> post,
                         std::function<void(Made)> finish) {
    return add([make = std::move(make), post = std::move(post), finish = std::move(finish)]() mutable {
      const auto made = std::make_shared<Made>(make());
      post([made, finish = std::exchange(finish, nullptr)] { finish(std::move(*made)); });
    });
  }

 private:
  void serve();

  const std::size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;  // guarded by mutex_
  bool stopping_ = false;                      // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace nibble
