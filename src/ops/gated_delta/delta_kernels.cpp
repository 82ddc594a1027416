// The rule's loops in plain C++, the oracle of the others, and the list of all.
#include "ops/gated_delta/delta_kernels.h"

#include "base/check.h"
#include "ops/gated_delta/delta_math.h"
#include "ops/gated_delta/delta_state.h"

namespace nibble {
namespace {

void multiply_keys(const KeyProducts& args) {
  for (int j = 0; j < args.count; ++j) {
    args.with_key[j] = lane_product(args.keys[j], args.key, args.key_dim);
    args.with_query[j] = lane_product(args.keys[j], args.query, args.key_dim);
  }
}

void read_state(const StateRead& args) {
  for (int c = 0; c < args.value_dim; ++c) {
    float known = 0, read = 0;
    for (int d = 0; d < args.key_dim; ++d) {
      const float kept = args.state[d * args.value_dim + c];
      known += args.key[d] * kept;
      read += args.query[d] * kept;
    }
    args.update[c] = args.value[c] - args.decay * known;
    args.out[c] = args.decay * read;
  }
}

void read_updates(const UpdatesRead& args) {
  for (int j = 0; j < args.count; ++j) {
    const float* earlier = args.updates + j * args.value_dim;
    for (int c = 0; c < args.value_dim; ++c) {
      args.update[c] -= args.with_key[j] * earlier[c];
      args.out[c] += args.with_query[j] * earlier[c];
    }
  }
}

void end_chunk(const ChunkEnd& args) {
  for (int d = 0; d < args.key_dim; ++d) {
    float* row = args.state + d * args.value_dim;
    for (int c = 0; c < args.value_dim; ++c) row[c] = args.first ? 0.0f : args.decay * row[c];
    for (int j = 0; j < delta_chunk; ++j) {
      const float factor = args.left[j] * args.keys[j][d];
      const float* added = args.updates + j * args.value_dim;
      for (int c = 0; c < args.value_dim; ++c) row[c] += factor * added[c];
    }
  }
}

void silu(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = delta_silu(x[i]);
}

bool always_supported() { return true; }

constexpr DeltaKernels kernels[] = {
    {"avx512", avx512_delta::supported, avx512_delta::multiply_keys, avx512_delta::read_state,
     avx512_delta::read_updates, avx512_delta::end_chunk, avx512_delta::silu},
    {"avx2", avx2_delta::supported, avx2_delta::multiply_keys, avx2_delta::read_state,
     avx2_delta::read_updates, avx2_delta::end_chunk, avx2_delta::silu},
    {"scalar", always_supported, multiply_keys, read_state, read_updates, end_chunk, silu},
};

}  // namespace

std::span<const DeltaKernels> delta_kernels() { return kernels; }

const DeltaKernels& best_delta_kernels() {
  for (const DeltaKernels& each : kernels) {
    if (each.supported()) return each;
  }
  NIBBLE_CHECK(false, "the scalar kernels run anywhere");
  return kernels[0];
}

}  // namespace nibble
