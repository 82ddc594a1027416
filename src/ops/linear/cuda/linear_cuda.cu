#include <string>

#include "ops/cuda/absent.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_outputs.cuh"
#include "ops/linear/cuda/norm_linear_cuda.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// A product's run and output, of either kind of arguments.
template <class Args>
DenseRun run_of(const Args& args) {
  const int processors = processors_of_device();
  return {.x = args.x,
          .weight = args.weight,
          .workspace = args.workspace,
          .blocks = args.blocks <= 0 || args.blocks > processors ? processors : args.blocks,
          .beside = args.beside <= 0 ? shared_beside : args.beside};
}

Result<RowsOutput> output_of(const LinearCudaArgs& args) {
  if ((args.y == nullptr) == (args.y_bf16 == nullptr))
    return invalid_argument("a product has one output, of float32 or of bfloat16");
  if (args.y_stride < args.weight.shape.rows) {
    return invalid_argument("a product of " + std::to_string(args.weight.shape.rows) +
                            " outputs needs a stride of as many, not " + std::to_string(args.y_stride));
  }
  return RowsOutput{.bias = args.bias,
                    .y = args.y,
                    .y_bf16 = args.y_bf16,
                    .stride = args.y_stride,
                    .rows = args.weight.shape.rows};
}

Result<QkvOutput> output_of(const QkvCudaArgs& args) {
  const int heads = args.heads + 2 * args.cache.kv_heads;
  if (args.weight.shape.rows != heads * 64) {
    return invalid_argument("q, k and v of " + std::to_string(heads) + " heads of 64 are " +
                            std::to_string(heads * 64) + " rows, not " +
                            std::to_string(args.weight.shape.rows));
  }
  if (args.cache.slots % 64 != 0) return invalid_argument("a cache's slots come in chunks of 64");
  return QkvOutput{.bias = args.bias,
                   .heads = args.heads,
                   .cos = args.cos,
                   .sin = args.sin,
                   .kv_slots = args.kv_slots,
                   .q = args.q,
                   .cache = args.cache};
}

template <class Args>
Status run_product(const Args& args, cudaStream_t stream) {
  NIBBLE_ASSIGN(const auto output, output_of(args));
  const DenseRun run = run_of(args);
  if (run.x.tokens == 0) return {};
  if (args.path == LinearPath::many ||
      (args.path == LinearPath::automatic && linear_takes_many(run.weight.shape, run.x.tokens))) {
    run_many(run, output, stream);
  } else {
    run_few(run, output, stream);
  }
  return {};
}

template <class Args>
Status run_with_norm(const AddRmsNormCudaArgs& norm, const Args& args, cudaStream_t stream) {
  if (!norm_linear_takes(norm, args.weight.shape)) {
    return invalid_argument(
        "norm and product in one take one row of " + std::to_string(args.weight.shape.cols) +
        " columns with the products of its few experts, and leave the residual elsewhere, not " +
        std::to_string(norm.rows) + " rows of " + std::to_string(norm.hidden) + " and of " +
        std::to_string(norm.experts.top_k) + " experts");
  }
  NIBBLE_ASSIGN(const auto output, output_of(args));
  run_normed(run_of(args), norm, output, stream);
  return {};
}

}  // namespace

void clear_linear_workspace(const LinearCudaWorkspace& workspace, int blocks, int tokens,
                            cudaStream_t stream) {
  make_absent(workspace.few_sums, linear_few_floats(blocks, tokens), stream);
  cuda_check(cudaMemsetAsync(workspace.arrived, 0, static_cast<std::size_t>(blocks) * sizeof(std::uint32_t),
                             stream));
}

Status linear_cuda(const LinearCudaArgs& args, cudaStream_t stream) { return run_product(args, stream); }
Status qkv_cuda(const QkvCudaArgs& args, cudaStream_t stream) { return run_product(args, stream); }

Status norm_linear_cuda(const AddRmsNormCudaArgs& norm, const LinearCudaArgs& product, cudaStream_t stream) {
  return run_with_norm(norm, product, stream);
}
Status norm_qkv_cuda(const AddRmsNormCudaArgs& norm, const QkvCudaArgs& product, cudaStream_t stream) {
  return run_with_norm(norm, product, stream);
}

}  // namespace nibble
