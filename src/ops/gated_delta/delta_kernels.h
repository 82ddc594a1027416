// What an implementation of the gated delta rule has to give: the loops over dimensions, of one head of
// values. The order of additions is gated_delta.h's; products and sums are rounded one by one.
#pragma once

#include <span>
#include <string_view>

namespace nibble {

// The chunk's keys against the key and the query of one row.
struct KeyProducts {
  const float* const* keys = nullptr;  // [count], each [key_dim]
  int count = 0;
  int key_dim = 0;
  const float *key = nullptr, *query = nullptr;      // [key_dim]
  float *with_key = nullptr, *with_query = nullptr;  // [count]
};

// u = v - decay (S^T key), o = decay (S^T query).
struct StateRead {
  const float* state = nullptr;  // [key_dim, value_dim]
  int key_dim = 0, value_dim = 0;
  const float *key = nullptr, *query = nullptr;  // [key_dim]
  float decay = 0;
  const float* value = nullptr;             // [value_dim]
  float *update = nullptr, *out = nullptr;  // [value_dim]
};

// u -= with_key[j] u_j, o += with_query[j] u_j, j ascending.
struct UpdatesRead {
  const float* updates = nullptr;  // [count, value_dim]
  int count = 0, value_dim = 0;
  const float *with_key = nullptr, *with_query = nullptr;  // [count]
  float *update = nullptr, *out = nullptr;                 // [value_dim], changed
};

// S = decay S + (left[j] k_j) u_j^T, j ascending over the chunk; S = 0 before, if it is the first.
struct ChunkEnd {
  float* state = nullptr;  // [key_dim, value_dim]
  int key_dim = 0, value_dim = 0;
  bool first = false;
  float decay = 0;
  const float* const* keys = nullptr;  // [delta_chunk], each [key_dim]
  const float* left = nullptr;         // [delta_chunk]
  const float* updates = nullptr;      // [delta_chunk, value_dim]
};

struct DeltaKernels {
  std::string_view name;
  bool (*supported)();  // by this machine
  void (*multiply_keys)(const KeyProducts& args);
  void (*read_state)(const StateRead& args);
  void (*read_updates)(const UpdatesRead& args);
  void (*end_chunk)(const ChunkEnd& args);
  void (*silu)(float* x, int n);  // in place
};

// In order of preference; the last one runs anywhere. All give the same bits.
std::span<const DeltaKernels> delta_kernels();
// The first that this machine supports.
const DeltaKernels& best_delta_kernels();

namespace avx2_delta {
bool supported();
void multiply_keys(const KeyProducts& args);
void read_state(const StateRead& args);
void read_updates(const UpdatesRead& args);
void end_chunk(const ChunkEnd& args);
void silu(float* x, int n);
}  // namespace avx2_delta

namespace avx512_delta {
bool supported();
void multiply_keys(const KeyProducts& args);
void read_state(const StateRead& args);
void read_updates(const UpdatesRead& args);
void end_chunk(const ChunkEnd& args);
void silu(float* x, int n);
}  // namespace avx512_delta

}  // namespace nibble
