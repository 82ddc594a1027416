// What a quantized checkpoint will hold, decided before anything is written: its tensors, their files, and
// the jobs that fill them. Pure: the same source and options give the same plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/weight_source.h"
#include "quantize/matrix_source.h"
#include "quantize/module_choice.h"
#include "quantize/row_encoder.h"

namespace nibble {

struct ConversionOptions {
  EncodeOptions encode;
  // Of all that is converted and no expert; absent: encode.format.
  std::optional<WeightFormat> rest;
  ModuleChoice modules;
  std::int64_t shard_bytes =
      5'000'000'000;  // a file is closed before it grows past this, if it holds anything
};

struct PlannedTensor {
  std::string name;
  DType dtype = DType::u8;
  Shape shape;
  int file = 0;             // index into ConversionPlan::files
  std::int64_t offset = 0;  // in that file

  std::int64_t bytes() const { return shape.count() * static_cast<std::int64_t>(dtype_bytes(dtype)); }
};

struct PlannedFile {
  std::string name;    // model.safetensors, or model-00001-of-00003.safetensors
  std::string header;  // with its length in front
  std::int64_t bytes = 0;
};

// Fills one or a few tensors. Matrices follow one another in the tensors: experts that lie in one.
struct ConversionJob {
  std::string name;  // of the module, or of a tensor that is copied
  bool quantize = false;
  WeightFormat format = WeightFormat::mxfp4;  // to quantize to
  // To quantize: all of one shape. To copy: one, of which rows x cols elements are taken as they are.
  std::vector<MatrixSource> matrices;
  std::int64_t source_bytes = 0;
  int codes = -1, scales = -1, global_scale = -1;  // indices into tensors; a copy has only codes
  // Matrices that share one global scale, since others multiply by them at once: equal numbers. NVFP4 only.
  int scale_group = -1;
};

struct ConversionPlan {
  std::vector<PlannedTensor> tensors;
  std::vector<PlannedFile> files;
  std::vector<ConversionJob> jobs;
  int scale_groups = 0;
  std::int64_t source_bytes = 0, written_bytes = 0;
  std::string config;  // the text of config.json
  std::string index;   // the text of model.safetensors.index.json; empty where there is one file
};

// config: the text of the source's config.json.
Result<ConversionPlan> plan_conversion(const WeightSource& source, const std::string& config,
                                       const ConversionOptions& options);

}  // namespace nibble
