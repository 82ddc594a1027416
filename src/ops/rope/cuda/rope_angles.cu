// A thread an angle: some 100 operations in double precision, none of them contracted.
#include "ops/cuda/launch.cuh"
#include "ops/fixed_math.h"
#include "ops/ptx/grid.cuh"
#include "ops/rope/cuda/rope_cuda.h"

namespace nibble {
namespace {

constexpr int angle_threads = 128;

__global__ void __launch_bounds__(angle_threads)
    rope_angles_rows(const __grid_constant__ RopeAnglesCudaArgs args) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int i = static_cast<int>(blockIdx.x) * angle_threads + static_cast<int>(threadIdx.x);
  if (i >= args.rows * args.half) return;
  const double angle = static_cast<float>(args.positions[i / args.half]) * args.inv_freq[i % args.half];
  const SinCos turn = fixed_sin_cos(angle);
  args.cos[i] = static_cast<float>(turn.cos) * args.concentration;
  args.sin[i] = static_cast<float>(turn.sin) * args.concentration;
}

}  // namespace

void rope_angles_cuda(const RopeAnglesCudaArgs& args, cudaStream_t stream) {
  const int angles = args.rows * args.half;
  if (angles == 0) return;
  launch_kernel({.blocks = dim3(static_cast<unsigned>((angles + angle_threads - 1) / angle_threads)),
                 .threads = angle_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                rope_angles_rows, args);
}

}  // namespace nibble
