// What blocks of a launch may wait for that other blocks bring, and warps that fill a ring in shared memory
// for those that read it. Who waits for what never comes gives up after some seconds and traps, which ends
// the process's use of the GPU. CUDA then says no more than that a launch failed, so the first that gave up
// leaves one of these in a word of pinned host memory.
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble {

enum class Stuck : std::uint32_t {
  nobody,
  dense_sums,        // of a dense product for few tokens
  attention_totals,  // of attention for few rows
  router_sums,       // of the norm and router in one
  expert_grid,       // the meeting between both products of the experts' decode kernel
  expert_tile,       // a tile's inputs, of the experts' kernel for many tokens
  shared_expert,     // the meeting between both products of a shared expert
  dense_ring,        // room in the ring of a dense product
  delta_room,        // for a chunk of the gated delta rule
};

constexpr std::string_view stuck_name(Stuck stuck) {
  switch (stuck) {
    case Stuck::nobody: break;
    case Stuck::dense_sums: return "another block's sums of a dense product";
    case Stuck::attention_totals: return "another block's totals of attention";
    case Stuck::router_sums: return "another block's sums of the router";
    case Stuck::expert_grid: return "the other blocks of the experts' decode kernel";
    case Stuck::expert_tile: return "the inputs of a tile of the experts' kernel for many tokens";
    case Stuck::shared_expert: return "the other blocks of a shared expert";
    case Stuck::dense_ring: return "room in the ring of a dense product";
    case Stuck::delta_room: return "room for a chunk of the gated delta rule";
  }
  return {};
}

}  // namespace nibble
