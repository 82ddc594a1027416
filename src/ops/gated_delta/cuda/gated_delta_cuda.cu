#include <string>

#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/gated_delta/cuda/gated_delta_cuda.h"

namespace nibble {

Status gated_delta_cuda(const GatedDeltaCudaArgs& args, cudaStream_t stream) {
  const DeltaShape& shape = args.layer.shape;
  if (!delta_cuda_takes(shape.key_dim, shape.value_dim)) {
    return invalid_argument("the gated delta rule takes heads of 128 dimensions, not of " +
                            std::to_string(shape.key_dim) + " for keys and " +
                            std::to_string(shape.value_dim) + " for values");
  }
  if (shape.taps > delta_cuda_taps) {
    return invalid_argument("the gated delta rule's convolution takes at most " +
                            std::to_string(delta_cuda_taps) + " taps, not " + std::to_string(shape.taps));
  }
  if (shape.key_heads < 1 || shape.value_heads % shape.key_heads != 0) {
    return invalid_argument("heads of values are a multiple of those of keys, not " +
                            std::to_string(shape.value_heads) + " of " + std::to_string(shape.key_heads));
  }
  if (args.step.rows == 0 || args.step.sequences == 0) return {};
  const DeltaKernelArgs own{.key_heads = shape.key_heads,
                            .value_heads = shape.value_heads,
                            .taps = shape.taps,
                            .kept_inputs = shape.kept_inputs(),
                            .channels = shape.channels(),
                            .served = shape.value_heads / shape.key_heads,
                            .step = args.step,
                            .columns = args.columns,
                            .projected = args.projected,
                            .gates = args.gates,
                            .projected_stride = args.projected_stride,
                            .gates_stride = args.gates_stride,
                            .convolution = args.convolution,
                            .rate = args.rate,
                            .bias = args.bias,
                            .norm = args.norm,
                            .eps = args.eps,
                            .qkv = args.qkv,
                            .decays = args.decays,
                            .betas = args.betas,
                            .products = args.products,
                            .mixed = args.mixed,
                            .out = args.out,
                            .slots = args.layer.slot(0),
                            .snapshots = args.layer.snapshot(0),
                            .slot_bytes = delta_state_bytes(shape),
                            .snapshot_bytes = delta_snapshot_bytes(shape),
                            .stuck = args.stuck};
  if (!args.step.one_row_each && has_many_delta_rows(args.step.rows)) {
    launch_delta_inputs(shape, own, stream);
    launch_delta_products(shape, own, stream);
    launch_delta_chunks(shape, own, stream);
    launch_delta_norm(shape, own, stream);
  }
  launch_delta_rows(shape, own, stream);
  if (!args.step.one_row_each) launch_delta_keep(shape, own, stream);
  return {};
}

}  // namespace nibble
