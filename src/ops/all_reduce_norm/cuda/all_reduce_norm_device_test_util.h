// What tests of all_reduce_norm on several GPUs share: cases, and what one GPU makes of them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "comm/cuda/peer_test_util.h"
#include "comm/leaves.h"
#include "ops/all_reduce_norm/cuda/all_reduce_norm_cuda.h"
#include "ops/cuda/device_test_util.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/op_test_util.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"

namespace nibble::sums {

class AllReduceNormOnGpus : public OnSeveralGpus {
 protected:
  void SetUp() override {
    OnSeveralGpus::SetUp();
    for (int device = 0; device < devices_ && !IsSkipped(); ++device) {
      const OnDevice on(device);
      for (const int members : group_sizes()) load_all_reduce_norm_kernels(members);
    }
  }
};

struct SumShape {
  int rows, hidden;

  std::size_t count() const { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(hidden); }
};
struct Variant {
  const char* name;
  bool residual, norm, less_one, at_owner;
};
constexpr Variant variants[] = {{"residual and norm", true, true, false, false},
                                {"weight less one", true, true, true, false},
                                {"residual at its owner", true, true, false, true},
                                {"residual alone", true, false, false, false},
                                {"norm alone", false, true, false, false}};

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Floats over a wide range, with both zeros.
inline std::vector<float> parts_of(unsigned seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<float> parts(count);
  for (float& part : parts) {
    const unsigned bits = random();
    part = bits % 17 == 0 ? (bits % 2 == 0 ? 0.0f : -0.0f)
                          : std::ldexp(static_cast<float>(static_cast<int>(bits % 65536) - 32768),
                                       static_cast<int>(bits >> 16) % 12 - 16);
  }
  return parts;
}
inline std::vector<float> tree_of_parts(const std::vector<std::vector<float>>& parts) {
  std::vector<float> sum(parts[0].size());
  for (std::size_t at = 0; at < sum.size(); ++at) {
    sum[at] = tree_sum(static_cast<int>(parts.size()),
                       [&](int i) { return parts[static_cast<std::size_t>(i)][at]; });
  }
  return sum;
}

// A sum over ranks, and what is done with it.
struct Case {
  std::vector<std::vector<float>> parts;  // of each rank
  std::vector<float> residual;
  std::vector<Bf16> weight, factor;  // as stored, and as it multiplies
};
inline Case case_of(unsigned seed, int ranks, const SumShape& shape, const Variant& variant) {
  std::mt19937 random(seed);
  Case c{.residual = variant.residual ? random_floats(random, shape.count(), 3.0f)
                                      : std::vector<float>(shape.count())};
  for (int i = 0; i < ranks; ++i)
    c.parts.push_back(parts_of(seed + 1000u * static_cast<unsigned>(i + 1), shape.count()));
  for (int i = 0; i < shape.hidden; ++i) {
    // 1 + weight is exact in bfloat16.
    const float less_one = static_cast<float>(static_cast<int>(random() % 127) - 63) / 128.0f;
    c.factor.push_back(Bf16::from_float(1.0f + less_one));
    c.weight.push_back(variant.less_one ? Bf16::from_float(less_one) : c.factor.back());
  }
  return c;
}

struct Answer {
  std::vector<float> residual;
  std::vector<Bf16> out;
  std::vector<std::uint8_t> tiles;
};

// By the norm of one GPU, from the parts' sum.
inline Answer of_one_gpu(const Case& c, const SumShape& shape, int stride) {
  Answer answer{std::vector<float>(shape.count()),
                std::vector<Bf16>(static_cast<std::size_t>(shape.rows * stride)),
                std::vector<std::uint8_t>(DenseShape{0, shape.hidden}.token_bytes(shape.rows))};
  const std::vector<float> sum = tree_of_parts(c.parts);
  DeviceBuffer residual = on_device(c.residual), delta = on_device(sum), weight = on_device(c.factor);
  DeviceBuffer out = device_bytes(answer.out.size() * 2, 0xff),
               tiles = device_bytes(answer.tiles.size(), 0xff);
  const Status status = add_rms_norm_cuda({.residual = residual.as<float>(),
                                           .residual_out = residual.as<float>(),
                                           .delta = delta.as<float>(),
                                           .weight = weight.as<Bf16>(),
                                           .out = out.as<Bf16>(),
                                           .out_stride = stride,
                                           .out_tiles = tiles.as<std::uint8_t>(),
                                           .rows = shape.rows,
                                           .hidden = shape.hidden,
                                           .eps = 1e-5f},
                                          nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  residual.copy_to(std::span(answer.residual));
  out.copy_to(std::span(answer.out));
  tiles.copy_to(std::span(answer.tiles));
  return answer;
}

}  // namespace nibble::sums
