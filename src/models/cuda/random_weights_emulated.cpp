// The kernels of random weights, compiled for the emulation.
#include "models/cuda/random_weights.cu"
