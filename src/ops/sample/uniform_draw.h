// The uniform number in [0, 1) of a draw: a counter-based generator, keyed by the seed.
#pragma once

#include <cstdint>

namespace nibble {

constexpr std::uint64_t mix_bits(std::uint64_t x) {  // the finaliser of SplitMix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr double uniform_draw(std::uint64_t seed, std::uint32_t choice, std::uint32_t position) {
  const std::uint64_t counter = static_cast<std::uint64_t>(choice) << 32 | position;
  return static_cast<double>(mix_bits(mix_bits(seed) + counter) >> 11) * 0x1p-53;
}

}  // namespace nibble
