// For tests: a checkpoint of random weights in a temporary folder, its tensors those that its config asks
// for.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_config.h"
#include "formats/e4m3.h"

namespace nibble {

class RandomCheckpoint {
 public:
  RandomCheckpoint(const std::string& config_json, unsigned seed) : random_(seed) {
    static int count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("nibble_random_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << config_json;
    const Result<ModelConfig> config = read_model_config(folder_);
    NIBBLE_CHECK(config.ok(), config.ok() ? "" : config.status().message());
    std::string header, data;
    for (const ExpectedTensor& tensor : expected_tensors(*config)) {
      const std::string bytes = bytes_of(tensor);
      header += (header.empty() ? "{\"" : ",\"") + tensor.name + R"(":{"dtype":")" + dtype_of(tensor) +
                R"(","shape":[)" + shape_of(tensor) + R"(],"data_offsets":[)" + std::to_string(data.size()) +
                "," + std::to_string(data.size() + bytes.size()) + "]}";
      data += bytes;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = header.size();
    std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
    std::ofstream(folder_ / "model.safetensors", std::ios::binary) << file + header + data;
  }
  RandomCheckpoint(const RandomCheckpoint&) = delete;
  RandomCheckpoint& operator=(const RandomCheckpoint&) = delete;
  ~RandomCheckpoint() { std::filesystem::remove_all(folder_); }

  const std::filesystem::path& folder() const { return folder_; }

 private:
  static std::string dtype_of(const ExpectedTensor& tensor) {
    return tensor.dtype == DType::bf16      ? "BF16"
           : tensor.dtype == DType::f32     ? "F32"
           : tensor.dtype == DType::f8_e4m3 ? "F8_E4M3"
           : tensor.dtype == DType::i32     ? "I32"
           : tensor.dtype == DType::i64     ? "I64"
                                            : "U8";
  }
  static std::string shape_of(const ExpectedTensor& tensor) {
    std::string text;
    for (int axis = 0; axis < tensor.shape.rank(); ++axis)
      text += (axis > 0 ? "," : "") + std::to_string(tensor.shape[axis]);
    return text;
  }

  // Matrices keep the size of what they multiply, as far as their columns tell.
  std::string bytes_of(const ExpectedTensor& tensor) {
    std::string bytes(static_cast<std::size_t>(tensor.bytes()), '\0');
    const double cols = static_cast<double>(tensor.shape[tensor.shape.rank() - 1]);
    if (tensor.scales == ScaleKind::bf16) {  // of codes of either sign
      for (std::size_t i = 0; i < bytes.size(); i += 2) {
        const double near_one = 0.5 + static_cast<double>(random_() % 1000) / 1000;
        const Bf16 scale = Bf16::from_float(static_cast<float>(near_one / (4.6 * std::sqrt(32 * cols))));
        std::memcpy(&bytes[i], &scale, 2);
      }
    } else if (tensor.dtype == DType::bf16) {
      const bool is_norm = tensor.name.ends_with("norm.weight");
      const bool is_router = tensor.name.ends_with("gate.weight");
      const double spread = is_norm                    ? 0.1
                            : tensor.shape.rank() == 1 ? 0.1
                                                       : (is_router ? 3.0 : 1.3) / std::sqrt(cols);
      std::normal_distribution<float> values(is_norm ? 1.0f : 0.0f, static_cast<float>(spread));
      for (std::size_t i = 0; i < bytes.size(); i += 2) {
        const Bf16 value = Bf16::from_float(values(random_));
        std::memcpy(&bytes[i], &value, 2);
      }
    } else if (tensor.scales == ScaleKind::e8m0) {
      const int exponent = 127 - static_cast<int>(std::lround(std::log2(3 * std::sqrt(32 * cols))));
      for (char& byte : bytes) byte = static_cast<char>(exponent + static_cast<int>(random_() % 3) - 1);
    } else if (tensor.scales == ScaleKind::e4m3) {
      const double scale = 64 / (4.3 * std::sqrt(16 * cols));
      for (char& byte : bytes) {
        const double wild = std::ldexp(scale, static_cast<int>(random_() % 5) - 3);
        byte = static_cast<char>(E4m3::from_float(static_cast<float>(wild)).bits + random_() % 7);
      }
    } else if (tensor.dtype == DType::f8_e4m3) {
      std::normal_distribution<float> values(0.0f, 60.0f);
      for (char& byte : bytes) byte = static_cast<char>(E4m3::from_float(values(random_)).bits);
    } else if (tensor.scales == ScaleKind::multiple && !tensor.one_value) {
      for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
        const float near_one = 0.5f + static_cast<float>(random_() % 1000) / 1000.0f;
        const float scale = near_one / (60 * std::sqrt(128 * static_cast<float>(cols)));
        std::memcpy(&bytes[i], &scale, sizeof scale);
      }
    } else if (tensor.one_value) {
      const float near_one = 0.5f + static_cast<float>(random_() % 1000) / 1000.0f;
      const float scale = tensor.name.ends_with("global_scale") ? 64 * near_one : near_one / 64;
      std::memcpy(bytes.data(), &scale, sizeof scale);
    } else {
      NIBBLE_CHECK(tensor.dtype == DType::u8 || tensor.dtype == DType::i32 || tensor.optional, tensor.name);
      for (char& byte : bytes) byte = static_cast<char>(random_());
    }
    return bytes;
  }

  std::mt19937 random_;
  std::filesystem::path folder_;
};

}  // namespace nibble
