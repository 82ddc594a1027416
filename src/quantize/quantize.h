// A checkpoint in fewer bits from a wider one. It streams: source pages are mapped, read once and given back,
// so that memory does not grow with the model. The bytes do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "quantize/conversion_plan.h"
#include "quantize/row_encoder.h"

namespace nibble {

struct QuantizeOptions {
  std::filesystem::path source;       // a model's folder
  std::filesystem::path destination;  // does not exist, its parent does
  ConversionOptions conversion;
  int threads = 0;  // 0: all CPUs this process may use
  bool restart = false;
};

struct QuantizeCallbacks {
  std::function<void(double done, double total)> progress;  // bytes of the source
  std::function<bool()> interrupted;
};

struct QuantizedModule {
  std::string name;
  std::int64_t matrices = 0, rows = 0, cols = 0;
  EncodeError error;
};

struct QuantizeReport {
  std::vector<QuantizedModule> modules;  // in the order of the source's files
  EncodeError error;                     // of all together
  std::int64_t source_bytes = 0, written_bytes = 0;
  std::int64_t resumed_jobs = 0;          // that an earlier run had done
  std::vector<std::string> copied_files;  // beside the weights
  std::vector<std::string> left_files;    // and folders that were not copied: other forms of the weights
};

// A job that is finished stays finished when this fails: the next call with the same options goes on from
// there.
Result<QuantizeReport> quantize_checkpoint(const QuantizeOptions& options,
                                           const QuantizeCallbacks& callbacks);

}  // namespace nibble
