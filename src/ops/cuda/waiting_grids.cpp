#include "ops/cuda/waiting_grids.h"

#include <string>

namespace nibble {

WaitingGrids waiting_grids() {
  WaitingGrids all;
  for (const auto of_kernel :
       {waiting_grids_of_attention_few, waiting_grids_of_dispatch, waiting_grids_of_gathers,
        waiting_grids_of_linear_few, waiting_grids_of_linear_normed, waiting_grids_of_moe_decode,
        waiting_grids_of_moe_row, waiting_grids_of_moe_some, waiting_grids_of_mxfp4_moe_many,
        waiting_grids_of_nvfp4_moe_many, waiting_grids_of_int4_moe_many, waiting_grids_of_peer_linear,
        waiting_grids_of_shared_expert}) {
    const WaitingGrids grids = of_kernel();
    all.insert(all.end(), grids.begin(), grids.end());
  }
  return all;
}

Status check_places(const WaitingGrids& grids) {
  for (const WaitingGrid& grid : grids) {
    if (grid.blocks <= grid.places) continue;
    return resource_exhausted("the " + std::to_string(grid.blocks) + " blocks of " +
                              std::string(grid.kernel) +
                              " wait for each other, and this GPU has places for " +
                              std::to_string(grid.places) + " of them at a time");
  }
  return {};
}

}  // namespace nibble
