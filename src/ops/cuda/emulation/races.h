// Accesses to shared memory that nothing orders: at least one of them a write, both of the same bytes, and
// neither sure to come before the other, whatever a run made of it. For kernels compiled with
// -fsanitize=thread, whose every load and store calls race_hooks.cpp; for others nothing is watched.
//
// Order comes from what a kernel does for it and from nothing else: barriers of the block, of the cluster
// and of a warp (__syncwarp, not shuffles), mbarriers, waiting for products and copies. It is kept as vector
// clocks of strands: a thread's program, and what engines do for it beside it. What a thread asks of a
// tensor core or a copy engine goes on until the thread has waited for it (or for the barrier that counts
// the bytes), and what the program wrote is there for engines only behind a fence of the thread that wrote
// it. An mbarrier's initialisation is a write of its place, and whoever uses it reads that. A store to
// another block's shared memory tells who waits for its bytes what its thread knew; a bulk copy tells
// nothing. Global memory is not watched.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace nibble::emulation {

// Set where the program's kernels tell of their accesses.
inline bool accesses_are_told = false;

using Time = std::uint32_t;  // from 1; 0 comes before everything
using Times = std::vector<Time>;
using Known = std::shared_ptr<const Times>;  // of each strand, up to when it is known to be over

enum Strand : unsigned {
  program,
  fenced,      // up to when writes of the program are there for engines
  products,    // of tensor cores, in groups; all lanes of a warp ask and wait together
  bulk_reads,  // of shared memory, on the way to global
  copies,      // to shared memory, 16 bytes each
  strands
};

// What has happened before what a thread does now.
struct Past {
  Known others;
  unsigned first = none, first_of_warp = none;  // strands in Times
  std::array<Time, strands> own{};
  std::array<Time, strands> asked{};  // of an engine, up to now

  static constexpr unsigned none = ~0u - strands;
  unsigned strand(unsigned which) const { return (which == products ? first_of_warp : first) + which; }
  bool knows(unsigned strand, Time time) const;
};

// The pasts of those who come to a barrier.
class Gathering {
 public:
  void add(const Past& past);
  void add(const Known& known);
  void add(unsigned strand, Time time);
  Known take();  // and begins anew

 private:
  void make_room(const Times& times);

  Times times_;
  Known last_;
};

struct Access {
  bool write = false, atomic = false, by_engine = false;
  const void* place = nullptr;  // in the program
};

// A load or store of a running kernel's thread, wherever in memory.
void accessed(const void* at, std::size_t bytes, const Access& access);

// A block's shared memory and its threads.
class RaceWatch {
 public:
  struct Shape {
    unsigned cluster, rank, threads;
  };
  RaceWatch(const Shape& shape, const std::uint8_t* dynamic, std::size_t dynamic_bytes);

  void access(unsigned thread, const void* at, std::size_t bytes, const Access& access);
  // Up to the end of the thread's present group of products.
  void product_read(unsigned thread, const void* at, std::size_t bytes, const void* place);
  void bulk_read(unsigned thread, const void* at, std::size_t bytes, const void* place);
  void copy(unsigned thread, const void* at, std::size_t bytes, const void* place);
  // A bulk copy, by somebody who knows `past`, up to the barrier's next end.
  void bulk_write(const Past& past, const void* at, std::size_t bytes, unsigned barrier_strand, Time end,
                  const void* place);

  void fence(unsigned thread);
  void close_products(unsigned thread) { ++pasts_[thread].asked[products]; }
  void await_products(unsigned thread, unsigned but);
  void await(unsigned thread, Strand strand) { pasts_[thread].own[strand] = pasts_[thread].asked[strand]; }

  void hand(unsigned thread, Gathering& to);
  void hand_after_copies(unsigned thread, Gathering& to);
  Known hand(unsigned thread);
  void learn(unsigned thread, const Known& known);

  const Past& past(unsigned thread) const { return pasts_[thread]; }
  // A strand that is not a thread's, for a barrier of this block.
  unsigned add_barrier();

 private:
  static constexpr unsigned granule_bytes = 8, cells = 8;
  // Who did what to a granule.
  struct Cell {
    unsigned strand;
    Time time;  // 0: nobody
    std::uint32_t place;
    std::uint8_t bytes;  // a bit each
    std::uint8_t write : 1, atomic : 1, by_engine : 1;
  };
  using Granule = std::array<Cell, cells>;
  struct Free {
    void operator()(Granule* granules) const;
  };

  void record(const Past& past, unsigned strand, Time time, const void* at, std::size_t bytes,
              const Access& access);
  void record(const Past& past, Granule& granule, const Cell& now);
  void report(const Cell& before, const Cell& now) const;

  const Shape shape_;
  const std::uint8_t* const dynamic_;
  const std::size_t dynamic_bytes_;
  const std::uint8_t* const declared_;  // what kernels declare is a thread's of the operating system
  const std::size_t declared_bytes_;
  std::unique_ptr<Granule[], Free> granules_;  // of the dynamic memory, then of the declared
  std::vector<Past> pasts_;
  unsigned barriers_ = 0;
  unsigned next_victim_ = 0;
  std::pair<Known, Known> joined_;  // the last two that a thread had to join, as many threads do
  Known joint_;
};

// What was found since the last call, each pair of places once.
std::vector<std::string> take_races();

}  // namespace nibble::emulation
