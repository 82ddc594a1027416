// A block of a kernel's threads as fibers, and a launch of such blocks.
#pragma once

#include <setjmp.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "ops/cuda/emulation/emulation.h"
#include "ops/cuda/emulation/races.h"
#include "ops/cuda/emulation/streams.h"

namespace nibble::emulation {

inline constexpr std::size_t stack_bytes = 64 * 1024;
inline constexpr unsigned most_at_once = 16;
inline constexpr int longest_copy = 40;   // turns
inline constexpr int longest_store = 20;  // turns
inline constexpr int early_turns = 60;    // of a launch beside the one ahead of it: by then it waits
inline constexpr std::chrono::minutes deadline{5};
inline constexpr std::uint8_t rubbish = 0xee;

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

struct Copy {
  Message message;
  int turns;
};

// A store on its way to memory that other ranks read.
struct Store {
  std::uint32_t* to;
  std::uint32_t words[4];
  unsigned count;
  int turns;
};

using Stack = std::unique_ptr<char[]>;

// Stacks are kept for blocks to come: fresh ones cost more than what runs on them.
class Stacks {
 public:
  static Stacks& all() {
    static Stacks only;
    return only;
  }
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

// What products add to, until they are waited for.
struct Sums {
  float* registers;
  std::vector<float> values;
  unsigned group;
};

// What a fiber waits for: as long as it is still so, resuming it is no use.
struct Wait {
  bool (*still)(const void* at, unsigned value) = nullptr;
  const void* at = nullptr;
  unsigned value = 0;

  bool goes_on() const { return still != nullptr && still(at, value); }
};

// A context begins a fiber; from then on it is left and resumed by jumps, which ask the system for nothing.
struct Fiber {
  ucontext_t context{};
  jmp_buf left;
  Stack stack;
  unsigned index = 0;
  unsigned clusters_ended = 0;  // meetings of the cluster, when this one came to the last
  bool begun = false, ended = false;
  Wait wait{};
  unsigned groups = 0;  // of products, that have been closed
  std::vector<Sums> under_way{};
};

// A kernel's run. Its first blocks run for some turns before it goes on.
class Launch {
 public:
  Launch(const Grid& launched, std::function<void()> run)
      : grid(launched), kernel(std::move(run)), goes_on_(!launched.overlaps) {}

  void begin();
  void finish();

  // By its blocks.
  bool goes_on() const { return goes_on_; }
  void wait_to_go_on() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return goes_on_.load(); });
  }
  void has_begun() {
    const std::lock_guard lock(mutex_);
    --beginning_;
    changed_.notify_all();
  }
  void has_waited() { has_waited_ = true; }

  const Grid grid;
  const std::function<void()> kernel;
  const unsigned seed = schedule_seed + 31 * static_cast<unsigned>(current_device);

 private:
  unsigned at_once() const { return grid.blocks_x <= most_at_once ? grid.blocks_x : grid.cluster; }
  void start_blocks(bool first);
  void join_blocks();

  std::atomic<bool> goes_on_, has_waited_ = false;
  // Not std::latch or a wait of the atomic, which yield first.
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned beginning_ = 0;  // of the first blocks, those that run early turns; under the mutex
  unsigned started_ = 0;    // blocks, row after row
  std::vector<Cluster> clusters_;
  std::vector<std::thread> blocks_;
};

inline thread_local Block* running = nullptr;  // in this thread of the operating system

class Block {
 public:
  // `begins`: the launch is told when it has run its early turns, or to its end.
  Block(Launch& launch, unsigned x, unsigned y, Cluster& cluster, bool begins)
      : launch_(launch),
        grid_(launch.grid),
        cluster_(cluster),
        x_(x),
        y_(y),
        begins_(begins),
        random_(x + 1 + 7919 * launch.seed),
        fibers_(grid_.threads),
        warps_((grid_.threads + 31) / 32),
        dynamic_(grid_.shared_bytes + 1024, rubbish) {
    if (accesses_are_told)
      watch_ = std::make_unique<RaceWatch>(RaceWatch::Shape{grid_.cluster, rank(), grid_.threads}, dynamic(),
                                           grid_.shared_bytes);
  }

  void run() {
    running = this;
    prctl(PR_SET_TIMERSLACK, 1000);  // of its short sleeps
    enlist(this);
    for (unsigned i = 0; i < grid_.threads; ++i) {
      Fiber& fiber = fibers_[i];
      fiber.index = i;
      fiber.stack = Stacks::all().take();
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = stack_bytes;
      makecontext(&fiber.context, enter, 0);
    }
    auto start = std::chrono::steady_clock::now();
    int turns = 0;
    std::vector<std::size_t> order(warps_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    while (ended_ < grid_.threads) {
      std::shuffle(order.begin(), order.end(), random_);
      for (const std::size_t warp : order) {
        if (order.size() > 2 && random_() % 3 == 0) continue;
        if (!rests(warp)) take_turns(warp);
      }
      take_messages();
      bring_copies();
      bring_stores();
      if (std::exchange(idle_, true))
        let_others_run();
      else
        waits_since_ = {};
      if (begins_ && ++turns == early_turns) {
        begins_ = false;
        launch_.has_begun();
        launch_.wait_to_go_on();
        start = std::chrono::steady_clock::now();
      }
      if (std::chrono::steady_clock::now() - start > deadline) stop("a launch does not end");
    }
    enlist(nullptr);
    take_messages();
    bring_all_stores();
    if (!copies_.empty()) stop("a block ended before its copies came");
    for (const auto& [address, barrier] : barriers_) {
      if (barrier.bytes != 0) stop("a block ended while a barrier waits for bytes");
    }
    for (Fiber& fiber : fibers_) Stacks::all().give(std::move(fiber.stack));
    running = nullptr;
    if (begins_) launch_.has_begun();
  }

  Warp& warp() { return warps_[current_->index / 32]; }
  Barrier& barrier(const void* address) {
    const auto found = barriers_.find(address);
    if (found == barriers_.end()) stop("a barrier nobody initialised");
    return found->second;
  }
  // As far behind a multiple of 1,024 bytes in all blocks, as on a GPU; kernels may count on 128.
  std::uint8_t* dynamic() {
    const auto address = reinterpret_cast<std::uintptr_t>(dynamic_.data());
    return dynamic_.data() + (1024 + 128 - address % 1024) % 1024;
  }
  bool is_dynamic(const void* at) { return at >= dynamic() && at < dynamic() + grid_.shared_bytes; }
  void wait_while(const Wait& wait) {
    current_->wait = wait;
    while (wait.goes_on()) give_way();
    current_->wait = {};
  }
  // Until a count is another.
  void wait_for_other(const unsigned& count, unsigned than) {
    wait_while({[](const void* at, unsigned value) { return *static_cast<const unsigned*>(at) == value; },
                &count, than});
  }

  // The values of these sums, or of the first `groups`, go back to where they belong.
  void bring_sums(const float* registers, unsigned groups) {
    std::erase_if(current_->under_way, [&](const Sums& sums) {
      if (sums.registers != registers && sums.group > groups) return false;
      std::copy(sums.values.begin(), sums.values.end(), sums.registers);
      return true;
    });
  }

  void poll() {
    give_way();
    idle_ = true;
  }
  void give_way() {
    if (_setjmp(current_->left) == 0) _longjmp(scheduler_, 1);
  }
  // By somebody with that past, if it is watched.
  void copy(const Message& message, const Past* past) {
    const auto misaligned = [](const void* pointer) {
      return reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0;
    };
    const std::uint32_t bytes = message.bytes;
    if (misaligned(message.to) || misaligned(message.from) || bytes % 16 != 0) stop("a misaligned bulk copy");
    const std::uint8_t* begin = static_cast<std::uint8_t*>(message.to);
    if (begin < dynamic() || begin + bytes > dynamic() + grid_.shared_bytes)
      stop("a bulk copy past shared memory");
    const Barrier& end = barrier(message.barrier);
    if (watch_ != nullptr)
      watch_->bulk_write(*past, message.to, bytes, end.strand, end.phase + 1, message.place);
    std::memset(message.to, rubbish, bytes);
    copies_.push_back({message, static_cast<int>(random_() % longest_copy)});
  }

  void bring_all_stores() {
    while (!stores_.empty()) bring_stores();
  }
  void store_later(std::uint32_t* to, const std::uint32_t* words, unsigned count) {
    Store store{to, {}, count, static_cast<int>(random_() % longest_store)};
    std::copy_n(words, count, store.words);
    // Stores to one place arrive in their order.
    const auto found = places_.find(to);
    if (found != places_.end()) store.turns = std::max(store.turns, found->second - turn_ + 1);
    places_[to] = turn_ + store.turns;
    stores_.push_back(store);
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
    if (watch_ != nullptr) message.known = watch_->hand(current_->index);
    if (rank == this->rank()) return copy(message, past());
    const std::lock_guard lock(cluster_.mutex);
    Block* const other = rank < grid_.cluster ? cluster_.blocks[rank] : nullptr;
    if (other == nullptr) stop("reaching into a block that does not run");
    message.to = place_in(*other, message.to);
    message.barrier = place_in(*other, message.barrier);
    other->messages_.push_back(message);
  }

  Launch& launch_;
  const Grid& grid_;
  Cluster& cluster_;
  const unsigned x_, y_;
  Fiber* current_ = nullptr;
  std::map<const void*, Barrier> barriers_;
  std::map<int, Meeting> meetings_;
  std::unique_ptr<RaceWatch> watch_;  // or nothing

 private:
  static void enter() {
    running->launch_.kernel();
    running->current_->ended = true;
    ++running->ended_;
    running->give_way();
  }
  // Whether the warp lets this turn pass (longest_rest).
  bool rests(std::size_t warp) {
    constexpr unsigned seldom = 64;
    if (longest_rest == 0) return false;
    if (rest_ == 0 && random_() % seldom == 0) {
      resting_ = warp;
      rest_ = random_() % longest_rest;
    }
    if (rest_ == 0 || warp != resting_) return false;
    --rest_;
    idle_ = false;
    return true;
  }
  void take_turns(std::size_t warp) {
    for (std::size_t i = warp * 32; i < std::min(fibers_.size(), warp * 32 + 32); ++i) {
      if (fibers_[i].ended || fibers_[i].wait.goes_on()) continue;
      idle_ = false;
      resume(fibers_[i]);
    }
  }
  // Copies and stores under way come by this block's own turns. Most waits for others are shorter than a
  // sleep takes, so a block yields at first. Who waits longer sleeps: a yield may put it behind all who
  // compute on a busy CPU.
  void let_others_run() {
    constexpr std::chrono::milliseconds short_wait{3};
    if (!copies_.empty() || !stores_.empty()) return;
    const auto now = std::chrono::steady_clock::now();
    if (waits_since_ == std::chrono::steady_clock::time_point()) waits_since_ = now;
    if (now - waits_since_ < short_wait)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(5));
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
    copy(message, &past);
  }
  // Beyond what the launch asked for, shared variables are a thread's, each thread's as far from its
  // `anchor_`.
  void* place_in(Block& other, const void* here) {
    if (is_dynamic(here)) return other.dynamic() + (static_cast<const std::uint8_t*>(here) - dynamic());
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(here) - anchor_ + other.anchor_);
  }
  // The words of a store one by one, the last ones first.
  void bring_stores() {
    ++turn_;
    if (stores_.empty()) return;
    for (Store& store : stores_) {
      if (--store.turns >= 0) continue;
      for (unsigned i = store.count; i-- > 0;)
        std::atomic_ref<std::uint32_t>(store.to[i]).store(store.words[i], std::memory_order_release);
    }
    std::erase_if(stores_, [](const Store& store) { return store.turns < 0; });
    if (stores_.empty()) places_.clear();
  }
  void bring_copies() {
    for (auto& [message, turns] : copies_) {
      if (--turns >= 0) continue;
      std::memcpy(message.to, message.from == nullptr ? message.value.data() : message.from, message.bytes);
      Barrier& end = barrier(message.barrier);
      // Bytes of a store to a block are a release of who stored them (complete_tx), those of a copy are
      // nobody's.
      if (watch_ != nullptr && message.from == nullptr) end.gathering.add(message.known);
      end.bytes -= message.bytes;
      end.settle();
    }
    std::erase_if(copies_, [](const Copy& copy) { return copy.turns < 0; });
  }

  bool begins_;
  std::mt19937 random_;
  std::size_t resting_ = 0;  // the warp that rests
  unsigned rest_ = 0;        // turns that it still does
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<Copy> copies_;
  std::vector<Message> messages_;  // under the cluster's mutex
  std::vector<Store> stores_;
  std::map<const void*, int> places_;  // of stores under way, and when the last to each arrives
  int turn_ = 0;
  const std::uintptr_t anchor_ = reinterpret_cast<std::uintptr_t>(&running);
  std::vector<std::uint8_t> dynamic_;
  jmp_buf scheduler_;
  unsigned ended_ = 0;
  std::chrono::steady_clock::time_point waits_since_;  // none: it has run in the last round
  bool idle_ = true;  // in this round: whether nobody ran, or only to look at what others have not done yet
};

}  // namespace nibble::emulation
