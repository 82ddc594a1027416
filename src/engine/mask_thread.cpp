#include "engine/mask_thread.h"

#include "base/thread_name.h"

namespace nibble {

MaskThread::MaskThread(int max_sequences) {
  answers_.reserve(static_cast<std::size_t>(max_sequences));
  thread_ = std::thread([this] { serve(); });
}

MaskThread::~MaskThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void MaskThread::begin(const Batch& batch) {
  finish();  // of a step that was dropped
  for (const BatchSequence& sequence : batch.sequences) {
    if (sequence.constrained != nullptr) answers_.push_back(sequence.constrained);
  }
  if (answers_.empty()) return;
  next_ = 0;
  {
    const std::lock_guard lock(mutex_);
    wanted_ = true;
  }
  wake_.notify_one();
}

void MaskThread::finish() {
  if (answers_.empty()) return;
  find();
  {
    std::unique_lock lock(mutex_);
    wanted_ = false;
    done_.wait(lock, [this] { return !finding_; });
  }
  answers_.clear();
}

void MaskThread::find() {
  for (std::size_t i = next_++; i < answers_.size(); i = next_++) answers_[i]->find_masks();
}

void MaskThread::serve() {
  name_this_thread("engine-masks");
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return wanted_ || stopping_; });
    if (stopping_) return;
    wanted_ = false;
    finding_ = true;
    lock.unlock();
    find();
    lock.lock();
    finding_ = false;
    done_.notify_one();
  }
}

}  // namespace nibble
