// What GPUs and their ranks can run and hold of a model.
#pragma once

#include <cstdint>

#include "plan/rules.h"

namespace nibble {

// What ranks of GPUs gather lies in whole blocks of so many columns.
inline constexpr std::int64_t gathered_columns = 64;

// Whether some kernel that is built runs the model's experts on the GPU that was found.
bool runs_on_this_gpu(const Situation& s);
// What a rank must hold at least: weights, what a step writes, and one sequence of some length.
std::int64_t least_bytes(const Situation& s, std::int64_t ranks);
// What copies of all experts leave on a GPU beyond the keys and values of all sequences at some length.
std::int64_t room_beside_copies(const Situation& s);
// Whether so many ranks of GPUs have whole parts of these. Ranks with sequences of their own have all of
// them.
bool heads_divide(const Situation& s, std::int64_t ranks);
bool states_divide(const Situation& s, std::int64_t ranks);
bool dense_layers_divide(const Situation& s, std::int64_t ranks);

}  // namespace nibble
