// What `nibble inspect` reports of a model's folder, as data: it never fails, it lists what is wrong.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/problems.h"
#include "tensor/shape.h"

namespace nibble {

struct InspectedTensor {
  std::string name;
  std::string file;    // without its folder
  std::string format;  // a dtype's name, or "mxfp4 codes" and "mxfp4 scales" for the two halves of MXFP4
  Shape shape;
  std::int64_t bytes = 0;
};

// All tensors of one format together; the two halves of MXFP4 are one.
struct FormatTotal {
  std::string format;
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;  // scales count as none
  std::int64_t bytes = 0;
};

// Tensors of a kind that nibble leaves alone: "vision".
struct LeftAlone {
  std::string what;
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
};

struct Inspection {
  std::filesystem::path folder;
  std::optional<ModelConfig> config;     // absent when config.json cannot be used
  std::vector<InspectedTensor> tensors;  // ascending by name
  std::vector<FormatTotal> formats;      // most bytes first
  FormatTotal total;                     // of all formats
  std::vector<LeftAlone> left_alone;
  std::optional<std::int64_t> active_bytes;  // a token reads at batch 1; absent without a configuration
  Problems problems;
};

Inspection inspect_model(const std::filesystem::path& folder);

}  // namespace nibble
