#include "server/work_queue.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/thread_name.h"

namespace nibble {
namespace {

// Where CPUs are short, tokens of those who are served come before the texts of those who wish to be: in a
// tenth of the time that others take, a giant text is read a little later and nobody's stream stands still.
constexpr int niceness = 10;

}  // namespace

WorkQueue::WorkQueue(int threads, int most_waiting) : most_waiting_(static_cast<std::size_t>(most_waiting)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkQueue::add(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= most_waiting_) return false;
    waiting_.push_back(std::move(work));
  }
  wake_.notify_one();
  return true;
}

void WorkQueue::serve() {
  name_this_thread("text-reader");
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()),
              getpriority(PRIO_PROCESS, 0) + niceness);  // of this thread alone
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // what it holds goes while nothing is locked
    lock.lock();
  }
}

}  // namespace nibble
