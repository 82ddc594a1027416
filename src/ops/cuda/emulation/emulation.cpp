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

namespace nibble::emulation {
namespace {

constexpr std::size_t stack_bytes = 64 * 1024;
constexpr unsigned most_at_once = 16;
constexpr int longest_copy = 40;  // turns
constexpr std::chrono::minutes deadline{5};
constexpr std::uint8_t rubbish = 0xee;

struct Barrier {
  unsigned arrivals = 0, pending = 0, phase = 0;
  std::int64_t bytes = 0;

  void settle() {
    if (pending > 0 || bytes != 0) return;
    ++phase;
    pending = arrivals;
  }
};

struct Meeting {
  unsigned arrived = 0, ended = 0;
};

class Block;

// Of blocks, each a thread of the operating system.
struct Cluster {
  std::atomic<unsigned> arrived = 0, ended = 0;
  std::mutex mutex;
  Block* blocks[most_at_once] = {};  // those that run
};

// Two sets of data take turns: a lane that is still reading one cannot be overtaken twice.
struct Warp {
  unsigned arrived = 0, ended = 0;
  Lanes lanes[2];
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
        dynamic_(grid.shared_bytes + 128, rubbish) {}

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
  void copy(void* to, const void* from, std::uint32_t bytes, const void* barrier, const Value& value = {}) {
    const auto misaligned = [](const void* pointer) {
      return reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0;
    };
    if (misaligned(to) || misaligned(from) || bytes % 16 != 0) stop("a misaligned bulk copy");
    const std::uint8_t* begin = static_cast<std::uint8_t*>(to);
    if (begin < dynamic() || begin + bytes > dynamic() + grid_.shared_bytes)
      stop("a bulk copy past shared memory");
    std::memset(to, rubbish, bytes);
    copies_.push_back({to, from, bytes, barrier, value, static_cast<int>(random_() % longest_copy)});
  }

  void arrive(const void* at, std::uint32_t bytes_to_come) {
    Barrier& end = barrier(at);
    if (end.pending == 0) stop("more arrivals than a barrier expects");
    end.bytes += bytes_to_come;
    --end.pending;
    end.settle();
  }

  unsigned rank() const { return x_ % grid_.cluster; }
  // `message` names places as they are in this block.
  void send(unsigned rank, Message message) {
    if (rank == this->rank()) return follow(message);
    const std::lock_guard lock(cluster_.mutex);
    Block* const other = rank < grid_.cluster ? cluster_.blocks[rank] : nullptr;
    if (other == nullptr) stop("reaching into a block that does not run");
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
  void follow(const Message& message) {
    if (message.bytes == 0) return arrive(message.barrier, 0);
    copy(message.to, message.from, message.bytes, message.barrier, message.value);
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
  if (++meeting.arrived < threads) return;
  meeting.arrived = 0;
  ++meeting.ended;
}

void block_barrier(int id, unsigned threads) {
  Meeting& meeting = running->meetings_[id];
  const unsigned ended = meeting.ended;
  come_to_barrier(id, threads);
  while (meeting.ended == ended) give_way();
}

void cluster_arrive() {
  Cluster& meeting = running->cluster_;
  running->current_->clusters_ended = meeting.ended;
  if (++meeting.arrived == running->grid_.cluster * running->grid_.threads) {
    meeting.arrived = 0;
    ++meeting.ended;
  }
}

void cluster_wait() {
  while (running->cluster_.ended == running->current_->clusters_ended) give_way();
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

void barrier_init(const void* barrier, unsigned arrivals) {
  running->barriers_[barrier] = {.arrivals = arrivals, .pending = arrivals};
}

void barrier_arrive(const void* barrier, std::uint32_t bytes_to_come) {
  running->arrive(barrier, bytes_to_come);
}

bool barrier_passed(const void* barrier, unsigned parity) {
  return (running->barrier(barrier).phase & 1) != parity;
}

void copy_to_shared(void* to, const void* from, std::uint32_t bytes, const void* barrier) {
  running->copy(to, from, bytes, barrier);
}

void barrier_arrive_at(const void* barrier, unsigned rank) {
  running->send(rank, {nullptr, nullptr, 0, barrier});
}

void copy_to_blocks(void* to, const void* from, std::uint32_t bytes, const void* barrier, unsigned ranks) {
  for (unsigned rank = 0; rank < most_at_once; ++rank) {
    if ((ranks >> rank & 1) != 0) running->send(rank, {to, from, bytes, barrier});
  }
}

void store_to_block(void* to, const void* sixteen_bytes, const void* barrier, unsigned rank) {
  Message message{to, nullptr, sizeof(Value), barrier};
  std::memcpy(message.value.data(), sixteen_bytes, sizeof(Value));
  running->send(rank, message);
}

void stop(const char* why) { check_failed("a kernel keeps the rules", why, SourceLocation::current()); }

}  // namespace nibble::emulation
