#include "ops/cuda/emulation/emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/cuda/emulation/races.h"

namespace nibble::emulation {
namespace {

constexpr std::size_t stack_bytes = 64 * 1024;
constexpr unsigned most_at_once = 16;
constexpr int longest_copy = 40;  // turns
constexpr std::chrono::minutes deadline{5};
constexpr std::uint8_t rubbish = 0xee;

// Where races are watched, a barrier hands on what those who came to it knew.
struct Barrier {
  unsigned arrivals = 0, pending = 0, phase = 0;
  unsigned strand = 0;
  std::int64_t bytes = 0;
  Gathering gathering{};
  Known known{};

  void settle() {
    if (pending > 0 || bytes != 0) return;
    ++phase;
    pending = arrivals;
    if (strand == 0) return;
    gathering.add(strand, phase);
    known = gathering.take();
  }
};

struct Meeting {
  unsigned arrived = 0, ended = 0;
  Gathering gathering;
  Known known;
};

class Block;

// Of blocks, each a thread of the operating system.
struct Cluster {
  std::mutex mutex;
  unsigned arrived = 0;
  std::atomic<unsigned> ended = 0;
  Gathering gathering;
  Known known;
  Block* blocks[most_at_once] = {};  // those that run
};

// Two sets of data take turns: a lane that is still reading one cannot be overtaken twice.
struct Warp {
  unsigned arrived = 0, ended = 0;
  Lanes lanes[2];
  Gathering gathering;
  Known known;
};

using Value = std::array<std::uint8_t, 16>;

struct Copy {
  void* to;
  const void* from;  // null: of the value
  std::uint32_t bytes;
  const void* barrier;
  Value value;
  int turns;
};

// What a block of the cluster asks of another: an arrival, or a copy if there are bytes.
struct Message {
  void* to;
  const void* from;  // null: of the value
  std::uint32_t bytes;
  const void* barrier;
  Value value{};
  Known known{};  // to who sent it
  const void* place = nullptr;
};

using Stack = std::unique_ptr<char[]>;

// Stacks are kept from block to block: fresh ones cost more than what runs on them.
class Stacks {
 public:
  Stack take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return Stack(new char[stack_bytes]);
    Stack stack = std::move(free_.back());
    free_.pop_back();
    return stack;
  }
  void give(Stack stack) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(stack));
  }

 private:
  std::mutex mutex_;
  std::vector<Stack> free_;
};

// A context begins a fiber; from then on it is left and resumed by jumps, which ask the system for nothing.
struct Fiber {
  ucontext_t context{};
  jmp_buf left;
  Stack stack;
  unsigned index = 0;
  unsigned clusters_ended = 0;  // meetings of the cluster, when this one came to the last
  bool begun = false, ended = false;
};

thread_local Block* running = nullptr;

class Block {
 public:
  Block(const Grid& grid, unsigned x, unsigned y, const std::function<void()>& kernel, Stacks& stacks,
        Cluster& cluster)
      : grid_(grid),
        cluster_(cluster),
        x_(x),
        y_(y),
        kernel_(kernel),
        stacks_(stacks),
        random_(x + 1),
        fibers_(grid.threads),
        warps_((grid.threads + 31) / 32),
        dynamic_(grid.shared_bytes + 128, rubbish) {
    if (accesses_are_told)
      watch_ = std::make_unique<RaceWatch>(RaceWatch::Shape{grid.cluster, rank(), grid.threads}, dynamic(),
                                           grid.shared_bytes);
  }

  void run() {
    running = this;
    enlist(this);
    for (unsigned i = 0; i < grid_.threads; ++i) {
      Fiber& fiber = fibers_[i];
      fiber.index = i;
      fiber.stack = stacks_.take();
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = stack_bytes;
      makecontext(&fiber.context, enter, 0);
    }
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::size_t> order(warps_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    while (ended_ < grid_.threads) {
      std::shuffle(order.begin(), order.end(), random_);
      for (const std::size_t warp : order) {
        if (order.size() > 2 && random_() % 3 == 0) continue;
        take_turns(warp);
      }
      take_messages();
      bring_copies();
      if (grid_.blocks_x > 1) std::this_thread::yield();
      if (std::chrono::steady_clock::now() - start > deadline) stop("a launch does not end");
    }
    enlist(nullptr);
    take_messages();
    if (!copies_.empty()) stop("a block ended before its copies came");
    for (const auto& [address, barrier] : barriers_) {
      if (barrier.bytes != 0) stop("a block ended while a barrier waits for bytes");
    }
    for (Fiber& fiber : fibers_) stacks_.give(std::move(fiber.stack));
    running = nullptr;
  }

  Warp& warp() { return warps_[current_->index / 32]; }
  Barrier& barrier(const void* address) {
    const auto found = barriers_.find(address);
    if (found == barriers_.end()) stop("a barrier nobody initialised");
    return found->second;
  }
  std::uint8_t* dynamic() {
    const auto address = reinterpret_cast<std::uintptr_t>(dynamic_.data());
    return dynamic_.data() + (128 - address % 128) % 128;
  }
  void give_way() {
    if (_setjmp(current_->left) == 0) _longjmp(scheduler_, 1);
  }
  // By somebody with that past, if it is watched.
  void copy(void* to, const void* from, std::uint32_t bytes, const void* barrier, const Past* past,
            const void* place, const Value& value = {}) {
    const auto misaligned = [](const void* pointer) {
      return reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0;
    };
    if (misaligned(to) || misaligned(from) || bytes % 16 != 0) stop("a misaligned bulk copy");
    const std::uint8_t* begin = static_cast<std::uint8_t*>(to);
    if (begin < dynamic() || begin + bytes > dynamic() + grid_.shared_bytes)
      stop("a bulk copy past shared memory");
    const Barrier& end = this->barrier(barrier);
    if (watch_ != nullptr) watch_->bulk_write(*past, to, bytes, end.strand, end.phase + 1, place);
    std::memset(to, rubbish, bytes);
    copies_.push_back({to, from, bytes, barrier, value, static_cast<int>(random_() % longest_copy)});
  }

  void arrive(const void* at, std::uint32_t bytes_to_come) {
    if (watch_ != nullptr) watch_->hand(current_->index, barrier(at).gathering);
    count_arrival(barrier(at), bytes_to_come);
  }
  void arrive_after_copies(const void* at) {
    if (watch_ != nullptr) watch_->hand_after_copies(current_->index, barrier(at).gathering);
    count_arrival(barrier(at), 0);
  }
  const Past* past() const { return watch_ == nullptr ? nullptr : &watch_->past(current_->index); }

  unsigned rank() const { return x_ % grid_.cluster; }
  // `message` names places as they are in this block.
  void send(unsigned rank, Message message) {
    if (rank == this->rank() && message.bytes == 0) return arrive(message.barrier, 0);
    if (rank == this->rank())
      return copy(message.to, message.from, message.bytes, message.barrier, past(), message.place,
                  message.value);
    const std::lock_guard lock(cluster_.mutex);
    Block* const other = rank < grid_.cluster ? cluster_.blocks[rank] : nullptr;
    if (other == nullptr) stop("reaching into a block that does not run");
    if (watch_ != nullptr) message.known = watch_->hand(current_->index);
    message.to = place_in(*other, message.to);
    message.barrier = place_in(*other, message.barrier);
    other->messages_.push_back(message);
  }

  const Grid& grid_;
  Cluster& cluster_;
  const unsigned x_, y_;
  Fiber* current_ = nullptr;
  std::map<const void*, Barrier> barriers_;
  std::map<int, Meeting> meetings_;
  std::unique_ptr<RaceWatch> watch_;  // or nothing

 private:
  static void enter() {
    running->kernel_();
    running->current_->ended = true;
    ++running->ended_;
    running->give_way();
  }
  void take_turns(std::size_t warp) {
    for (std::size_t i = warp * 32; i < std::min(fibers_.size(), warp * 32 + 32); ++i) {
      if (!fibers_[i].ended) resume(fibers_[i]);
    }
  }
  void resume(Fiber& fiber) {
    current_ = &fiber;
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.begun) _longjmp(fiber.left, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
  }
  void enlist(Block* block) {
    const std::lock_guard lock(cluster_.mutex);
    cluster_.blocks[rank()] = block;
  }
  void take_messages() {
    std::vector<Message> messages;
    {
      const std::lock_guard lock(cluster_.mutex);
      messages.swap(messages_);
    }
    for (const Message& message : messages) follow(message);
  }
  void count_arrival(Barrier& end, std::uint32_t bytes_to_come) {
    if (end.pending == 0) stop("more arrivals than a barrier expects");
    end.bytes += bytes_to_come;
    --end.pending;
    end.settle();
  }
  void follow(const Message& message) {
    if (message.bytes == 0) {
      Barrier& end = barrier(message.barrier);
      if (watch_ != nullptr) end.gathering.add(message.known);
      return count_arrival(end, 0);
    }
    const Past past{.others = message.known};
    copy(message.to, message.from, message.bytes, message.barrier, &past, message.place, message.value);
  }
  // Beyond what the launch asked for, shared variables are a thread's, each thread's as far from its
  // `anchor_`.
  void* place_in(Block& other, const void* here) {
    const auto* const at = static_cast<const std::uint8_t*>(here);
    if (at >= dynamic() && at < dynamic() + grid_.shared_bytes) return other.dynamic() + (at - dynamic());
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(here) - anchor_ + other.anchor_);
  }
  void bring_copies() {
    for (Copy& copy : copies_) {
      if (--copy.turns >= 0) continue;
      std::memcpy(copy.to, copy.from == nullptr ? copy.value.data() : copy.from, copy.bytes);
      Barrier& end = barrier(copy.barrier);
      end.bytes -= copy.bytes;
      end.settle();
    }
    std::erase_if(copies_, [](const Copy& copy) { return copy.turns < 0; });
  }

  const std::function<void()>& kernel_;
  Stacks& stacks_;
  std::mt19937 random_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<Copy> copies_;
  std::vector<Message> messages_;  // under the cluster's mutex
  const std::uintptr_t anchor_ = reinterpret_cast<std::uintptr_t>(&running);
  std::vector<std::uint8_t> dynamic_;
  jmp_buf scheduler_;
  unsigned ended_ = 0;
};

}  // namespace

void run(const Grid& grid, const std::function<void()>& kernel) {
  Stacks stacks;
  if (grid.blocks_x % grid.cluster != 0 || grid.cluster > most_at_once)
    stop("clusters whose blocks do not all run at the same time");
  const unsigned together = grid.blocks_x <= most_at_once ? grid.blocks_x : grid.cluster;
  for (unsigned y = 0; y < grid.blocks_y; ++y) {
    std::vector<std::thread> blocks;
    std::vector<Cluster> clusters((grid.blocks_x + grid.cluster - 1) / grid.cluster);
    for (unsigned x = 0; x < grid.blocks_x; ++x) {
      // A thread of its own for each: the kernel's static shared variables are a thread's.
      blocks.emplace_back([&grid, &kernel, &stacks, &clusters, x, y] {
        Block(grid, x, y, kernel, stacks, clusters[x / grid.cluster]).run();
      });
      if ((x + 1) % together != 0) continue;
      for (std::thread& block : blocks) block.join();
      blocks.clear();
    }
  }
}

unsigned thread_index() { return running->current_->index; }
unsigned block_index(int axis) { return axis == 0 ? running->x_ : running->y_; }
unsigned grid_size(int axis) { return axis == 0 ? running->grid_.blocks_x : running->grid_.blocks_y; }
unsigned block_size() { return running->grid_.threads; }
std::uint8_t* dynamic_shared() { return running->dynamic(); }
void give_way() { running->give_way(); }

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
  while (meeting.ended == ended) give_way();
  if (running->watch_ != nullptr) running->watch_->learn(thread_index(), meeting.known);
}

void cluster_arrive() {
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
  while (running->cluster_.ended == running->current_->clusters_ended) give_way();
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
  while (warp.ended == ended) give_way();
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

void barrier_init(const void* barrier, unsigned arrivals) {
  Barrier& begun = running->barriers_[barrier];
  begun = {.arrivals = arrivals, .pending = arrivals};
  if (running->watch_ != nullptr) begun.strand = running->watch_->add_barrier();
}

void barrier_arrive(const void* barrier, std::uint32_t bytes_to_come) {
  running->arrive(barrier, bytes_to_come);
}

bool barrier_passed(const void* barrier, unsigned parity) {
  const Barrier& end = running->barrier(barrier);
  if ((end.phase & 1) == parity) return false;
  if (running->watch_ != nullptr) running->watch_->learn(thread_index(), end.known);
  return true;
}

void copy_to_shared(void* to, const void* from, std::uint32_t bytes, const void* barrier) {
  running->copy(to, from, bytes, barrier, running->past(), __builtin_return_address(0));
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

void barrier_arrive_after_copies(const void* barrier) { running->arrive_after_copies(barrier); }

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

void close_products() {
  if (running->watch_ != nullptr) running->watch_->close_products(thread_index());
}

void await_products(unsigned but) {
  if (running->watch_ != nullptr) running->watch_->await_products(thread_index(), but);
}

void accessed(const void* at, std::size_t bytes, bool write, bool atomic, const void* place) {
  if (running == nullptr || running->watch_ == nullptr) return;
  running->watch_->access(thread_index(), at, bytes, {.write = write, .atomic = atomic, .place = place});
}

void stop(const char* why) { check_failed("a kernel keeps the rules", why, SourceLocation::current()); }

}  // namespace nibble::emulation
