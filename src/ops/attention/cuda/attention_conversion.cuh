// Keys and values that come as e4m3, made bfloat16 in shared memory for products that read them there.
#pragma once

#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/attention/cuda/kv_operands.cuh"

namespace nibble {

// Where they come in, by a launch's warps that convert.
template <int slots, int converters, int dims>
using ComingRing = KvRing<KvE4m3, slots, converters, dims>;

// By warp `converter` of the ring's: its part of a tile's steps [begin, end), `from` e4m3 `to` bfloat16.
template <int converters, class Coming, class Ring>
__device__ __forceinline__ void convert_steps(const Coming& coming, typename Coming::Place& from,
                                              const Ring& ring, typename Ring::Place& to, int begin, int end,
                                              int converter, int lane) {
#pragma unroll 1
  for (int slot = 2 * begin; slot < 2 * end; ++slot) {  // keys, then values
    coming.wait_full(from);
    ring.wait_empty(to);
    constexpr int groups_of_slot = attention_slot_bytes<KvE4m3, Coming::dims> / kv_group_bytes<KvE4m3>;
    GroupOperand<KvE4m3> next;
    next.load(coming.slot(from) + converter * kv_group_bytes<KvE4m3>, lane);
#pragma unroll 1
    for (int group = converter; group < groups_of_slot; group += converters) {
      const GroupOperand<KvE4m3> operand = next;
      if (group + converters < groups_of_slot)
        next.load(coming.slot(from) + (group + converters) * kv_group_bytes<KvE4m3>, lane);
      std::uint8_t* const at = ring.slot(to) + group * kv_group_bytes<KvBf16> + lane * 4;
#pragma unroll
      for (int i = 0; i < 8; ++i) *reinterpret_cast<std::uint32_t*>(at + 128 * i) = operand.pair(i);
    }
    ptx::fence_shared_writes();
    __syncwarp();  // all lanes have read and written
    if (lane == 0) {
      coming.release(from);
      ptx::mbarrier_arrive(&ring.full[to.slot]);
    }
    from = from.plus(1);
    to = to.plus(1);
  }
}

}  // namespace nibble
