// The same for kernels on the emulation of a GPU, which expect what nvcc includes by itself.
#pragma once

#include <cuda_runtime_api.h>

#include "library_headers.h"
