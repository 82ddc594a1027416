#include "models/cuda/random_weights.h"

#include <cmath>
#include <string_view>

#include "base/check.h"
#include "models/cuda/random_numbers.h"

namespace nibble {
namespace {

// FNV-1a
std::uint64_t hash_of(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ seed;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  return hash;
}

struct Values {
  float center, deviation;
};
Values values_of(const ExpectedTensor& tensor) {
  const std::string_view name = tensor.name;
  if (name.ends_with("norm.weight")) return {1.0f, 0.06f};
  if (name.ends_with("bias") || name.ends_with("sinks")) return {0.0f, 0.06f};
  if (name.ends_with("embed_tokens.weight")) return {0.0f, 1.0f};
  if (tensor.scales == ScaleKind::bf16) {  // of int4, a code's root mean square is 4.6
    const float columns = 32.0f * static_cast<float>(tensor.shape[tensor.shape.rank() - 1]);
    const float size = 1.0f / (4.6f * std::sqrt(columns));
    return {size, size / 8};
  }
  return {0.0f, 1.0f / std::sqrt(static_cast<float>(tensor.shape[tensor.shape.rank() - 1]))};
}

}  // namespace

Status RandomWeights::queue(const ExpectedTensor& tensor, std::size_t begin, std::size_t count, void* to,
                            cudaStream_t stream) {
  // Of words that hold codes each byte is a number of its own.
  const std::size_t element = tensor.dtype == DType::i32 ? 1 : dtype_bytes(tensor.dtype);
  const RandomPlaces places{
      .stream = hash_of(tensor.name, seed_), .first = begin / element, .count = count / element};
  if (places.count == 0) return {};
  if (tensor.dtype == DType::bf16) {
    const Values values = values_of(tensor);
    random_bf16_cuda(places, values.center, values.deviation, static_cast<std::uint16_t*>(to), stream);
  } else if (tensor.scales == ScaleKind::e8m0) {
    // A code's mean square is 9.2: with scales of about 1 / (3 sqrt(columns)) a sum's variance is the
    // input's.
    const float columns = 32.0f * static_cast<float>(tensor.shape[tensor.shape.rank() - 1]);
    const int exponent = static_cast<int>(std::lround(-std::log2(3.0f * std::sqrt(columns))));
    random_scales_cuda(places, exponent, static_cast<std::uint8_t*>(to), stream);
  } else if (tensor.scales == ScaleKind::e4m3) {
    // Likewise, with scales between one and two times a power of two, and the matrix's own of about 2^-6.
    const float columns = 16.0f * static_cast<float>(tensor.shape[tensor.shape.rank() - 1]);
    const int exponent = 6 + static_cast<int>(std::lround(-std::log2(4.3f * std::sqrt(columns))));
    random_e4m3_scales_cuda(places, exponent, static_cast<std::uint8_t*>(to), stream);
  } else if (tensor.dtype == DType::f8_e4m3) {
    random_e4m3_cuda(places, static_cast<std::uint8_t*>(to), stream);
  } else if (tensor.flat) {
    // Of rows, of some thousand columns.
    random_floats_cuda(places, 1.0f / (105.0f * 45.0f), static_cast<float*>(to), stream);
  } else if (tensor.scales == ScaleKind::multiple && tensor.shape.rank() == 2) {
    // Of tiles of 128 x 128; the root of a code's mean square is 105.
    const float columns = 128.0f * static_cast<float>(tensor.shape[1]);
    random_floats_cuda(places, 1.0f / (105.0f * std::sqrt(columns)), static_cast<float*>(to), stream);
  } else if (tensor.one_value) {
    const bool divides = tensor.name.ends_with("global_scale");
    random_floats_cuda(places, divides ? 64.0f : 1.0f / 64.0f, static_cast<float*>(to), stream);
  } else {
    NIBBLE_CHECK(tensor.dtype == DType::u8 || tensor.dtype == DType::i32);
    random_bytes_cuda(places, static_cast<std::uint8_t*>(to), stream);
  }
  return {};
}

}  // namespace nibble
