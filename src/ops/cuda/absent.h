// Sums that say themselves that they have come: a place in memory holds bits that no sum has until one is
// stored, whoever takes it makes them absent again, and so nobody counts and nothing has to be ordered.
#pragma once

#include <cstdint>

namespace nibble {

// A NaN other than the one that arithmetic gives; every byte of it is the same.
inline constexpr std::uint32_t absent_bits = 0xffffffffu;

}  // namespace nibble
