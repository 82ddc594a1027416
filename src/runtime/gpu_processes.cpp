#include "runtime/gpu_processes.h"

#include <algorithm>
#include <span>

#include "base/check.h"

namespace nibble {

Status GpuProcesses::meet(std::span<std::byte> shared) {
  if (is_first()) {
    NIBBLE_RETURN_IF_ERROR(links_->wait_until_all_are_ready());
    message_.assign(shared.begin(), shared.end());
    message_.push_back(static_cast<std::byte>(Call::begin));
    links_->announce_step(message_);
    return {};
  }
  links_->announce_ready();
  NIBBLE_ASSIGN(const bool came, links_->wait_for_step(message_));
  if (!came) return internal_error("process 0 ended before it was ready; its own output says why");
  if (message_.size() != shared.size() + 1 || message_.back() != static_cast<std::byte>(Call::begin))
    return internal_error("what came from process 0 is no meeting");
  std::copy_n(message_.begin(), shared.size(), shared.begin());
  return {};
}

Status GpuProcesses::become_ready() {
  if (is_first()) return links_->wait_until_all_are_ready();
  links_->announce_ready();
  return {};
}

void GpuProcesses::tell(Call call, const Batch* batch) {
  NIBBLE_CHECK(is_first() && (call == Call::forward) == (batch != nullptr));
  message_.clear();
  if (batch != nullptr) write_step(*batch, message_);
  message_.push_back(static_cast<std::byte>(call));
  links_->announce_step(message_);
}

Result<std::optional<GpuProcesses::Call>> GpuProcesses::next() {
  NIBBLE_ASSIGN(const bool came, links_->wait_for_step(message_));
  if (!came) return std::optional<Call>();
  const Status odd = internal_error("what came from process 0 is no step");
  if (message_.empty() || message_.back() > static_cast<std::byte>(Call::finish)) return odd;
  const auto call = static_cast<Call>(message_.back());
  message_.pop_back();
  if (call != Call::forward) return message_.empty() ? Result<std::optional<Call>>(call) : odd;
  NIBBLE_RETURN_IF_ERROR(step_.read(message_));
  return std::optional<Call>(call);
}

Status GpuProcesses::failed(const Status& why) {
  const Status gone = failure();
  if (!gone.ok()) return gone;
  const auto own = static_cast<std::uint32_t>(first_rank());
  note_fault(fault_,
             {.rank = own, .peer = own, .kind = FaultNote::Kind::failed, .call = {}, .peer_call = {}});
  return why;
}

}  // namespace nibble
