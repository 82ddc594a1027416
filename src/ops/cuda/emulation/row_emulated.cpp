// The kernels of embedding, norms, angles and heads, compiled for the emulation.
#include "ops/embedding/cuda/embedding_rows.cu"
#include "ops/output_gate/cuda/gate_heads.cu"
#include "ops/rms_norm/cuda/add_rms_norm.cu"
#include "ops/rms_norm/cuda/stream_rms_norm.cu"
#include "ops/rope/cuda/rope_angles.cu"
#include "ops/rope/cuda/turn_heads.cu"
