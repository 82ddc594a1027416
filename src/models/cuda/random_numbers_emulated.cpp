// The kernels of random numbers, compiled for the emulation.
#include "models/cuda/random_numbers.cu"
