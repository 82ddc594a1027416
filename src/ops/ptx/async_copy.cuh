// Bulk copies into shared memory and the mbarriers that say when their bytes have come.
#pragma once

#include <cstdint>

namespace nibble::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// The same pointer, from a register: an address in shared memory that the compiler knows it makes anew
// wherever it is used, from the block's place in its cluster, which takes longer than what it is for.
template <class T>
__device__ __forceinline__ T* held(T* shared) {
  asm volatile("" : "+l"(shared));
  return shared;
}

// A number, computed where this stands and not where it is used.
__device__ __forceinline__ int held(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A phase of the barrier ends with `arrivals` arrivals and all the bytes that were announced.
__device__ __forceinline__ void mbarrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

// Holds the warp until what it has loaded from shared memory is there; `words`: of every load one, mixed. An
// arrival does not wait for loads that are still on their way: where others keep the multiprocessor's memory
// pipe busy, the bulk copy that an arrival admits overwrites what they were about to read.
__device__ __forceinline__ void await_loads(std::uint32_t words) {
  asm volatile(
      "{\n"
      ".reg .pred never;\n"  // or once in 2^32, harmlessly: what counts is that it wants the words
      "setp.eq.u32 never, %0, 0x7fc1a5b3;\n"
      "@never nanosleep.u32 0;\n"
      "}" ::"r"(words)
      : "memory");
}

// Makes initialised barriers known to the copy engine.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// One arrival, and so many bytes to come.
__device__ __forceinline__ void mbarrier_arrive_expecting(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Returns once the phase of this parity has ended; the phase before a barrier's first has parity 1.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Whether it has, after some microseconds at the latest.
__device__ __forceinline__ bool mbarrier_has_ended(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t ended;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(ended)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return ended != 0;
}

// What this thread wrote to shared memory comes before products and copies of others that read it after a
// barrier.
__device__ __forceinline__ void fence_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// 16 bytes from global memory, past the first-level cache; they are there for this thread when
// await_copies_to_shared returns.
__device__ __forceinline__ void copy_to_shared(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
__device__ __forceinline__ void await_copies_to_shared() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What this thread wrote, or saw written, comes before bulk copies that are ordered after it.
__device__ __forceinline__ void fence_bulk_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }

// An arrival, once all that this thread has asked for by copy_to_shared is there.
__device__ __forceinline__ void mbarrier_arrive_after_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Both addresses and the size are multiples of 16; the bytes count towards the barrier's phase.
__device__ __forceinline__ void bulk_copy_to_shared(void* shared, const void* global, std::uint32_t bytes,
                                                    std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The same for what nobody reads again soon: it is the first to leave the second-level cache, which a step's
// weights would otherwise clear of all that is small and read in every layer, the kernels' own code too.
__device__ __forceinline__ void bulk_copy_once_to_shared(void* shared, const void* global,
                                                         std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 leaves_first;\n"
      "createpolicy.fractional.L2::evict_first.b64 leaves_first, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "leaves_first;\n"
      "}" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// What tells the second-level cache so: seven instructions, which who copies often makes once.
__device__ __forceinline__ std::uint64_t copied_once() {
  std::uint64_t leaves_first;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(leaves_first));
  return leaves_first;
}
__device__ __forceinline__ void bulk_copy_once_to_shared(void* shared, const void* global,
                                                         std::uint32_t bytes, std::uint64_t* barrier,
                                                         std::uint64_t copied_once) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(copied_once)
      : "memory");
}

// From shared memory to global, as multiples of 16; by one thread, which waits for its copies by itself.
__device__ __forceinline__ void bulk_copy_to_global(void* global, const void* shared, std::uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(global),
      "r"(shared_address(shared)), "r"(bytes)
      : "memory");
}
// Shared memory has been read; or the bytes have come, too.
__device__ __forceinline__ void await_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void await_bulk_copies() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Brings the 32 bytes around a global address near, by copying 4 of them to shared memory that nobody reads;
// it is not waited for and takes no register.
__device__ __forceinline__ void touch_sector(std::uint32_t* nobodys, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(nobodys)), "l"(global));
}

}  // namespace nibble::ptx
