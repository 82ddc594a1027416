#include <string>

#include "ops/cuda/absent.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_outputs.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

template <class Output>
void run_path(DenseRun run, LinearPath path, const Output& output, cudaStream_t stream) {
  if (run.x.tokens == 0) return;
  const int processors = processors_of_device();
  if (run.blocks <= 0 || run.blocks > processors) run.blocks = processors;
  if (run.beside <= 0) run.beside = shared_beside;
  if (path == LinearPath::many ||
      (path == LinearPath::automatic && linear_takes_many(run.weight.shape, run.x.tokens))) {
    run_many(run, output, stream);
  } else {
    run_few(run, output, stream);
  }
}

}  // namespace

void clear_linear_workspace(const LinearCudaWorkspace& workspace, int blocks, int tokens,
                            cudaStream_t stream) {
  make_absent(workspace.few_sums, linear_few_floats(blocks, tokens), stream);
  cuda_check(cudaMemsetAsync(workspace.arrived, 0, static_cast<std::size_t>(blocks) * sizeof(std::uint32_t),
                             stream));
}

Status linear_cuda(const LinearCudaArgs& args, cudaStream_t stream) {
  if ((args.y == nullptr) == (args.y_bf16 == nullptr))
    return invalid_argument("a product has one output, of float32 or of bfloat16");
  if (args.y_stride < args.weight.shape.rows) {
    return invalid_argument("a product of " + std::to_string(args.weight.shape.rows) +
                            " outputs needs a stride of as many, not " + std::to_string(args.y_stride));
  }
  run_path({.x = args.x,
            .weight = args.weight,
            .workspace = args.workspace,
            .blocks = args.blocks,
            .beside = args.beside},
           args.path,
           RowsOutput{.bias = args.bias,
                      .y = args.y,
                      .y_bf16 = args.y_bf16,
                      .stride = args.y_stride,
                      .rows = args.weight.shape.rows},
           stream);
  return {};
}

Status qkv_cuda(const QkvCudaArgs& args, cudaStream_t stream) {
  const int heads = args.heads + 2 * args.cache.kv_heads;
  if (args.weight.shape.rows != heads * 64) {
    return invalid_argument("q, k and v of " + std::to_string(heads) + " heads of 64 are " +
                            std::to_string(heads * 64) + " rows, not " +
                            std::to_string(args.weight.shape.rows));
  }
  if (args.cache.slots % 64 != 0) return invalid_argument("a cache's slots come in chunks of 64");
  run_path({.x = args.x,
            .weight = args.weight,
            .workspace = args.workspace,
            .blocks = args.blocks,
            .beside = args.beside},
           args.path,
           QkvOutput{.bias = args.bias,
                     .heads = args.heads,
                     .cos = args.cos,
                     .sin = args.sin,
                     .kv_slots = args.kv_slots,
                     .q = args.q,
                     .cache = args.cache},
           stream);
  return {};
}

}  // namespace nibble
