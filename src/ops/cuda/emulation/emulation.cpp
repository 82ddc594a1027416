#include "ops/cuda/emulation/emulation.h"

#include <atomic>
#include <limits>

#include "base/check.h"
#include "ops/cuda/emulation/block.h"

namespace nibble::emulation {

void wait_for_launches() {
  running->launch_.has_waited();
  const auto still = [](const void* at, unsigned) { return !static_cast<const Launch*>(at)->goes_on(); };
  running->wait_while({still, &running->launch_, 0});
}

unsigned thread_index() { return running->current_->index; }
unsigned block_index(int axis) { return axis == 0 ? running->x_ : running->y_; }
unsigned grid_size(int axis) { return axis == 0 ? running->grid_.blocks_x : running->grid_.blocks_y; }
unsigned block_size() { return running->grid_.threads; }
std::uint8_t* dynamic_shared() { return running->dynamic(); }

void check_global(const void* at) {
  if (running != nullptr && running->is_dynamic(at)) stop("a load of global memory that is shared");
}
void poll() { running->poll(); }
void fence_system() {
  running->bring_all_stores();
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
void store_later(void* at, const std::uint32_t* words, unsigned count) {
  running->store_later(static_cast<std::uint32_t*>(at), words, count);
}

void come_to_barrier(int id, unsigned threads) {
  Meeting& meeting = running->meetings_[id];
  if (running->watch_ != nullptr) running->watch_->hand(thread_index(), meeting.gathering);
  if (++meeting.arrived < threads) return;
  meeting.arrived = 0;
  ++meeting.ended;
  if (running->watch_ != nullptr) meeting.known = meeting.gathering.take();
}

void block_barrier(int id, unsigned threads) {
  Meeting& meeting = running->meetings_[id];
  const unsigned ended = meeting.ended;
  come_to_barrier(id, threads);
  running->wait_for_other(meeting.ended, ended);
  if (running->watch_ != nullptr) running->watch_->learn(thread_index(), meeting.known);
}

// A block without a cluster meets where it waits, as at __syncthreads: a thread that only comes to the
// barrier lets no other pass.
bool has_no_cluster() { return running->grid_.cluster == 1; }

void cluster_arrive() {
  if (has_no_cluster()) return;
  Cluster& meeting = running->cluster_;
  const std::lock_guard lock(meeting.mutex);
  running->current_->clusters_ended = meeting.ended;
  if (running->watch_ != nullptr) running->watch_->hand(thread_index(), meeting.gathering);
  if (++meeting.arrived < running->grid_.cluster * running->grid_.threads) return;
  meeting.arrived = 0;
  if (running->watch_ != nullptr) meeting.known = meeting.gathering.take();
  ++meeting.ended;
}

void cluster_wait() {
  if (has_no_cluster()) return block_barrier(0, running->grid_.threads);
  const auto still = [](const void* at, unsigned value) {
    return static_cast<const Cluster*>(at)->ended == value;
  };
  running->wait_while({still, &running->cluster_, running->current_->clusters_ended});
  if (running->watch_ == nullptr) return;
  const std::lock_guard lock(running->cluster_.mutex);
  running->watch_->learn(thread_index(), running->cluster_.known);
}

unsigned cluster_rank() { return running->rank(); }

Lanes& exchange(const LaneData& own, void (*together)(Lanes&)) {
  Warp& warp = running->warp();
  const unsigned ended = warp.ended;
  Lanes& lanes = warp.lanes[ended % 2];
  lanes[thread_index() % 32] = own;
  if (++warp.arrived == 32) {
    if (together != nullptr) together(lanes);
    warp.arrived = 0;
    ++warp.ended;
  }
  running->wait_for_other(warp.ended, ended);
  return lanes;
}

void warp_barrier() {
  Warp& warp = running->warp();
  RaceWatch* const watch = running->watch_.get();
  if (watch != nullptr) {
    watch->hand(thread_index(), warp.gathering);
    if (warp.arrived == 31) warp.known = warp.gathering.take();
  }
  exchange({});
  if (watch != nullptr) watch->learn(thread_index(), warp.known);
}

// To a watch of races a barrier is a word: who uses it does so behind who initialised it.
constexpr std::size_t barrier_bytes = 8;

void barrier_init(const void* barrier, unsigned arrivals) {
  Barrier& begun = running->barriers_[barrier];
  begun = {.arrivals = arrivals, .pending = arrivals};
  if (running->watch_ != nullptr) begun.strand = running->watch_->add_barrier();
  accessed(barrier, barrier_bytes, {.write = true, .place = __builtin_return_address(0)});
}

void barrier_arrive(const void* barrier, std::uint32_t bytes_to_come) {
  accessed(barrier, barrier_bytes, {.atomic = true, .place = __builtin_return_address(0)});
  running->arrive(barrier, bytes_to_come);
}

void barrier_wait(const void* barrier, unsigned parity) {
  accessed(barrier, barrier_bytes, {.atomic = true, .place = __builtin_return_address(0)});
  const Barrier& end = running->barrier(barrier);
  const auto still = [](const void* at, unsigned value) {
    return (static_cast<const Barrier*>(at)->phase & 1) == value;
  };
  running->wait_while({still, &end, parity});
  if (running->watch_ != nullptr) running->watch_->learn(thread_index(), end.known);
}

bool barrier_has_ended(const void* barrier, unsigned parity) {
  return (running->barrier(barrier).phase & 1) != parity;
}

void copy_to_shared(void* to, const void* from, std::uint32_t bytes, const void* barrier) {
  Message message{to, from, bytes, barrier};
  message.place = __builtin_return_address(0);
  running->copy(message, running->past());
}

void barrier_arrive_at(const void* barrier, unsigned rank) {
  running->send(rank, {nullptr, nullptr, 0, barrier});
}

void copy_to_blocks(void* to, const void* from, std::uint32_t bytes, const void* barrier, unsigned ranks) {
  Message message{to, from, bytes, barrier};
  message.place = __builtin_return_address(0);
  for (unsigned rank = 0; rank < most_at_once; ++rank) {
    if ((ranks >> rank & 1) != 0) running->send(rank, message);
  }
}

void store_to_block(void* to, const void* sixteen_bytes, const void* barrier, unsigned rank) {
  Message message{to, nullptr, sizeof(Value), barrier};
  std::memcpy(message.value.data(), sixteen_bytes, sizeof(Value));
  message.place = __builtin_return_address(0);
  running->send(rank, message);
}

void copy_by_thread(void* to, const void* from) {
  if (running->watch_ != nullptr) running->watch_->copy(thread_index(), to, 16, __builtin_return_address(0));
  std::memcpy(to, from, 16);
}

void await_copies_by_thread() {
  if (running->watch_ != nullptr) running->watch_->await(thread_index(), copies);
}

void barrier_arrive_after_copies(const void* barrier) {
  accessed(barrier, barrier_bytes, {.atomic = true, .place = __builtin_return_address(0)});
  running->arrive_after_copies(barrier);
}

void copy_from_shared(void* to, const void* from, std::uint32_t bytes) {
  if (running->watch_ != nullptr)
    running->watch_->bulk_read(thread_index(), from, bytes, __builtin_return_address(0));
  std::memcpy(to, from, bytes);
}

void await_copies_from_shared() {
  if (running->watch_ != nullptr) running->watch_->await(thread_index(), bulk_reads);
}

void fence_writes() {
  if (running->watch_ != nullptr) running->watch_->fence(thread_index());
}

std::uint32_t operand_of_products(const void* at) {
  if (running->watch_ != nullptr)
    running->watch_->product_read(thread_index(), at, 4, __builtin_return_address(0));
  std::uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

void begin_product(const float* sums) { running->bring_sums(sums, 0); }

void end_product(float* sums, unsigned count) {
  Fiber& fiber = *running->current_;
  fiber.under_way.push_back({sums, std::vector<float>(sums, sums + count), fiber.groups + 1});
  std::fill_n(sums, count, std::numeric_limits<float>::quiet_NaN());
}

void close_products() {
  ++running->current_->groups;
  if (running->watch_ != nullptr) running->watch_->close_products(thread_index());
}

void await_products(unsigned but) {
  const unsigned groups = running->current_->groups;
  running->bring_sums(nullptr, groups > but ? groups - but : 0);
  if (running->watch_ != nullptr) running->watch_->await_products(thread_index(), but);
}

void accessed(const void* at, std::size_t bytes, const Access& access) {
  if (running != nullptr && running->watch_ != nullptr)
    running->watch_->access(thread_index(), at, bytes, access);
}

void stop(const char* why) { check_failed("a kernel keeps the rules", why, SourceLocation::current()); }

}  // namespace nibble::emulation
