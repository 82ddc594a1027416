// The instructions of AMX in thin wrappers. A tile is 16 rows of up to 64 bytes. They are written out because
// the compilers' own wrappers want register numbers spelled as digits, and g++ 12's for the configuration
// tells of 8 of its 64 bytes, so that stores to the rest may be dropped.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace nibble {

struct AmxTiles {
  // Palette 1: eight tiles of sixteen rows.
  struct alignas(64) Configuration {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Configuration) == 64);

  // For the calling thread; tiles hold zeros.
  __attribute__((target("amx-tile"))) static void begin(const std::array<std::uint16_t, 8>& row_bytes) {
    Configuration configuration;
    std::copy(row_bytes.begin(), row_bytes.end(), configuration.row_bytes);
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  // Unused tiles need not be saved at a context switch.
  __attribute__((target("amx-tile"))) static void end() { asm volatile("tilerelease" ::); }

  template <int tile>
  __attribute__((target("amx-tile"), always_inline)) static inline void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(tile));
  }
  template <int tile>
  __attribute__((target("amx-tile"), always_inline)) static inline void load(const void* base,
                                                                             std::int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(tile), "r"(base), "r"(stride) : "memory");
  }
  template <int tile>
  __attribute__((target("amx-tile"), always_inline)) static inline void store(void* base,
                                                                              std::int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(tile), "r"(base), "r"(stride) : "memory");
  }
  // sums [16][16] += a [16 rows][32 k] * b [16 pairs of k][16 columns][2]
  template <int sums, int a, int b>
  __attribute__((target("amx-tile,amx-bf16"), always_inline)) static inline void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
  }
};

}  // namespace nibble
