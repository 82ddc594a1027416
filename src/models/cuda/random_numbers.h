// Numbers out of a seed, made on the GPU: each depends on its stream and its place there alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nibble {

// Places [first, first + count) of a stream.
struct RandomPlaces {
  std::uint64_t stream = 0;
  std::size_t first = 0, count = 0;
};

// All write to device memory. center + deviation x a number of mean 0 and variance 1, as bfloat16.
void random_bf16_cuda(const RandomPlaces& places, float center, float deviation, std::uint16_t* to,
                      cudaStream_t stream);
// Any byte, as often as any other.
void random_bytes_cuda(const RandomPlaces& places, std::uint8_t* to, cudaStream_t stream);
// E8M0: 2^exponent, or (a quarter each) the power above or below.
void random_scales_cuda(const RandomPlaces& places, int exponent, std::uint8_t* to, cudaStream_t stream);
// E4M3: 2^exponent x (1, 1 1/8, .. or 1 7/8).
void random_e4m3_scales_cuda(const RandomPlaces& places, int exponent, std::uint8_t* to, cudaStream_t stream);
// E4M3: any code that is a number.
void random_e4m3_cuda(const RandomPlaces& places, std::uint8_t* to, cudaStream_t stream);
// float32, between half and one and a half times `center`.
void random_floats_cuda(const RandomPlaces& places, float center, float* to, cudaStream_t stream);

}  // namespace nibble
