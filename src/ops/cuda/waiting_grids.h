// Grids whose blocks wait for other blocks of theirs, or of the same grid on another GPU. A block without a
// place does not run until another ends, which may be waiting for it: so all blocks of such a grid must have
// their places at the same time. Their numbers follow the multiprocessors of the device, of a whole GPU or of
// a slice of one. Whether registers and shared memory leave as many places is asked before a model is loaded.
//
// Not among them: blocks of a cluster, which come together or not at all; a norm's router, whose last block
// alone waits, for blocks that end by themselves; and the last block of a launch at a meeting of ranks.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace nibble {

struct WaitingGrid {
  std::string_view kernel;
  int blocks = 0;  // of its largest launch on the device in use
  int places = 0;  // for them there, at the same time
};
using WaitingGrids = std::vector<WaitingGrid>;

// All there are, as they would be launched on the device in use.
WaitingGrids waiting_grids();

// Refuses, by name and with the numbers, if one has more blocks than places.
Status check_places(const WaitingGrids& grids);

// Each kernel's, from its own file.
WaitingGrids waiting_grids_of_attention_few();
WaitingGrids waiting_grids_of_dispatch();
WaitingGrids waiting_grids_of_gathers();
WaitingGrids waiting_grids_of_linear_few();
WaitingGrids waiting_grids_of_linear_normed();
WaitingGrids waiting_grids_of_moe_decode();
WaitingGrids waiting_grids_of_moe_row();
WaitingGrids waiting_grids_of_moe_some();
WaitingGrids waiting_grids_of_mxfp4_moe_many();
WaitingGrids waiting_grids_of_nvfp4_moe_many();
WaitingGrids waiting_grids_of_int4_moe_many();
WaitingGrids waiting_grids_of_peer_linear();
WaitingGrids waiting_grids_of_shared_expert();

}  // namespace nibble
