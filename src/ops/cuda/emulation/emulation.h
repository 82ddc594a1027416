// A multiprocessor for machines that have none: kernels compiled as plain C++ run here thread by thread, so
// that their indices, barriers and ends are tested where no GPU is. It knows nothing of speed, nor of the
// bits of a tensor core's sums (products are added in order of k here).
//
// Every thread of a block is a fiber, and each block a thread of the operating system. Fibers give way only
// where they wait: at barriers, in operations of the whole warp, when polling memory. Warps take turns in
// random order, and some lag. Bulk copies first fill their target with rubbish and bring the bytes some turns
// later, so that reading early or overwriting what is still read gives wrong results; a launch that overlaps
// the one ahead of it begins before that one has done its work. What no kernel may do stops the process: more
// arrivals than a barrier expects, misaligned or stray copies, bytes on their way when a block ends, reaching
// into a block that does not run, a launch that does not end, or that ends without having waited for the one
// ahead of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace nibble::emulation {

struct Grid {
  unsigned blocks_x = 1, blocks_y = 1, threads = 1;
  unsigned cluster = 1;          // neighbours in a row, at most 16
  bool overlaps = false;         // the launch ahead of it, until it waits for that
  std::size_t shared_bytes = 0;  // beyond what the kernel declares
};

// Whose turn it is follows from it, from a block's number and its device; tests try several.
inline unsigned schedule_seed = 0;
// Turns of its block for which one warp at a time may rest, though it could go on; now and then.
inline unsigned longest_rest = 0;

// Runs a kernel. Blocks of one row of a grid of at most 16 a row run at the same time, others in turn. One
// that overlaps others runs its first blocks for some turns before the launch ahead has done anything behind
// its own wait, so that what it reads too early is not there; and it ends when the next has begun, or by
// finish_launches.
void run(const Grid& grid, std::function<void()> kernel);
void finish_launches();
void finish_launches_of(int device);

// What follows is called by a running kernel's threads.
unsigned thread_index();
unsigned block_index(int axis);
unsigned grid_size(int axis);
unsigned block_size();
std::uint8_t* dynamic_shared();

// A load of the kind that goes to global memory alone.
void check_global(const void* at);

// Lets the others run, before a look at memory that they write.
void poll();
// A store that other ranks see. It is under way for some turns, and stores to other places may arrive before
// it; all have arrived when the block ends.
void store_later(void* at, const std::uint32_t* words, unsigned count);
// Those of the block have arrived when it returns.
void fence_system();

// Ends when `threads` of the block have come to it.
void block_barrier(int id, unsigned threads);
// Counts as one of them without waiting.
void come_to_barrier(int id, unsigned threads);

// The wait ends when all threads of the cluster have come.
void cluster_arrive();
void cluster_wait();
unsigned cluster_rank();

// All 32 lanes hand in up to 64 bytes; the last one to come applies `together` to all of them; then every
// lane reads any lane's until its warp's next exchange.
struct alignas(16) LaneData {
  std::uint32_t words[16];
};
using Lanes = LaneData[32];
Lanes& exchange(const LaneData& own, void (*together)(Lanes&) = nullptr);
// The only one of the whole warp that orders memory.
void warp_barrier();

// mbarriers, known by their address.
void barrier_init(const void* barrier, unsigned arrivals);
void barrier_arrive(const void* barrier, std::uint32_t bytes_to_come);
void barrier_wait(const void* barrier, unsigned parity);
bool barrier_has_ended(const void* barrier, unsigned parity);  // which it takes to be waited for, too
void copy_to_shared(void* to, const void* from, std::uint32_t bytes, const void* barrier);
// The same in other blocks of the cluster, at the places that these are in the caller's.
void barrier_arrive_at(const void* barrier, unsigned rank);
void copy_to_blocks(void* to, const void* from, std::uint32_t bytes, const void* barrier, unsigned ranks);
void store_to_block(void* to, const void* sixteen_bytes, const void* barrier, unsigned rank);

// For the launch ahead.
void wait_for_launches();

// 16 bytes, by the thread itself; they are there for it when it has waited.
void copy_by_thread(void* to, const void* from);
void await_copies_by_thread();
// Counts once they are there.
void barrier_arrive_after_copies(const void* barrier);

// From shared memory, which is read until the thread has waited.
void copy_from_shared(void* to, const void* from, std::uint32_t bytes);
void await_copies_from_shared();

// What the thread wrote is there for engines.
void fence_writes();

// A word that tensor cores read in the thread's present group of products, which goes on until it has waited
// for all groups `but` the last few.
std::uint32_t operand_of_products(const void* at);
// Sums that are no numbers to the thread between the product and that wait.
void begin_product(const float* sums);
void end_product(float* sums, unsigned count);
void close_products();
void await_products(unsigned but);

[[noreturn]] void stop(const char* why);

}  // namespace nibble::emulation
