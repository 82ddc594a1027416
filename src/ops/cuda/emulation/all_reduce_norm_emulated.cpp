// The kernels that add over ranks, compiled for the emulation.
#include "ops/all_reduce_norm/cuda/one_shot_clusters.cu"
#include "ops/all_reduce_norm/cuda/one_shot_rows.cu"
#include "ops/all_reduce_norm/cuda/push_parts.cu"
#include "ops/all_reduce_norm/cuda/two_shot_clusters.cu"
#include "ops/all_reduce_norm/cuda/two_shot_pairs.cu"
#include "ops/all_reduce_norm/cuda/two_shot_rows.cu"
