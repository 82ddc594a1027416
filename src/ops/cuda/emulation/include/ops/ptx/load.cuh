// The twin of src/ops/ptx/load.cuh on the emulation.
#pragma once

namespace nibble::ptx {

inline uint4 load_streaming(const void* global) { return *static_cast<const uint4*>(global); }

}  // namespace nibble::ptx
