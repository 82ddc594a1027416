// The kernels with which ranks gather, compiled for the emulation.
#include "ops/peer_gather/cuda/dispatch_few_rows.cu"
#include "ops/peer_gather/cuda/dispatch_rows.cu"
#include "ops/peer_gather/cuda/merge_parts.cu"
#include "ops/peer_gather/cuda/peer_gather.cu"
#include "ops/peer_gather/cuda/peer_gather_few.cu"
