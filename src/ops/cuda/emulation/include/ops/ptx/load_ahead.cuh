// The twin of src/ops/ptx/load_ahead.cuh on the emulation.
#pragma once

namespace nibble::ptx {

inline float load_ahead(const float* global) { return *global; }

}  // namespace nibble::ptx
