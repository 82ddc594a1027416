// Weights out of a seed, in a checkpoint's own layout, made on the GPU: so that a model's true shapes run
// where its files do not fit. Every tensor's values depend on the seed, its name and the place alone.
//
//   bfloat16   norms 1 +- 1/8, biases and sinks below 1/8, matrices so large that outputs are of the size of
//              inputs: sums of four uniform numbers, of standard deviation 1 / sqrt(columns)
//   MXFP4      all codes equally likely; scales 2^e, 2^(e + 1) or (a quarter of them) 2^(e - 1), with which
//              the products are of the size of their inputs likewise
//   NVFP4      the same; scales of 16 between 2^e and 2^(e + 1), of a matrix between 2^-7 and 3 x 2^-7
//   int4       all codes equally likely; scales 1 +- 1/4 times a size with which products are likewise
//   FP8        all codes that are numbers equally likely; scales of tiles likewise
#pragma once

#include <cstdint>

#include "models/cuda/weight_feed.h"

namespace nibble {

class RandomWeights final : public WeightFeed {
 public:
  explicit RandomWeights(std::uint64_t seed) : seed_(seed) {}
  Status queue(const ExpectedTensor& tensor, std::size_t begin, std::size_t count, void* to,
               cudaStream_t stream) override;

 private:
  std::uint64_t seed_;
};

}  // namespace nibble
