// Finds the masks of a step's constrained answers on a thread of its own, while the model's forward runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/batch.h"

namespace nibble {

class MaskThread {
 public:
  explicit MaskThread(int max_sequences);
  MaskThread(const MaskThread&) = delete;
  MaskThread& operator=(const MaskThread&) = delete;
  ~MaskThread();

  // All tokens of the batch are known. Until finish() its constraints are the thread's. Allocates nothing,
  // and wakes nobody where no answer is constrained.
  void begin(const Batch& batch);
  // Every mask is there; the caller finds those that the thread has not come to. Without begin(): nothing.
  void finish();

 private:
  void serve();
  // Takes answers until none is left.
  void find();

  std::vector<ConstrainedAnswer*> answers_;  // [max_sequences]; changes only while nobody finds
  std::atomic<std::size_t> next_ = 0;        // the first answer that nobody has taken

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  bool wanted_ = false;    // guarded by mutex_: answers wait that the thread has not seen
  bool finding_ = false;   // guarded by mutex_: the thread looks at answers_
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;     // last: it uses all of the above
};

}  // namespace nibble
