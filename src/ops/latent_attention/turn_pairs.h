// Rotary embedding of neighbours: (x[2i], x[2i + 1]) turned by (cos[i], sin[i]). `out` may be x.
#pragma once

namespace nibble {

inline void turn_pairs(const float* x, const float* cos, const float* sin, int pairs, float* out) {
  for (int i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    out[2 * i] = a * cos[i] - b * sin[i];
    out[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

}  // namespace nibble
