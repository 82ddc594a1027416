#include "checkpoint/inspect.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/weight_source.h"

namespace nibble {
namespace {

constexpr std::string_view codes_suffix = "_blocks";
constexpr std::string_view scales_suffix = "_scales";

// Whether this u8 tensor has its other half beside it under the other suffix.
bool is_half(const WeightSource& source, std::string_view name, std::string_view own,
             std::string_view other) {
  if (!name.ends_with(own)) return false;
  const StoredTensor* half =
      source.find(std::string(name.substr(0, name.size() - own.size())) + std::string(other));
  return half != nullptr && half->tensor.dtype == DType::u8;
}

struct Format {
  std::string label;  // of the tensor
  std::string name;   // of the total it counts in
  std::int64_t values_per_element = 1;
};

Format format_of(const WeightSource& source, const StoredTensor& stored) {
  if (stored.tensor.dtype == DType::u8) {
    if (is_half(source, stored.name, codes_suffix, scales_suffix)) return {"mxfp4 codes", "mxfp4", 2};
    if (is_half(source, stored.name, scales_suffix, codes_suffix)) return {"mxfp4 scales", "mxfp4", 0};
  }
  const std::string name(dtype_name(stored.tensor.dtype));
  return {name, name, 1};
}

// The tensors of weights that are not stored as they are multiplied, by name: codes and scales.
std::map<std::string, Format> quantized_tensors(const ModelConfig& config, const WeightSource& source) {
  std::map<std::string, Format> formats;
  visit_weights(config, [&](const Weight& weight) {
    if (!weight.is_matrix() || weight.format == TensorFormat::bf16) return;
    const std::string name(tensor_format_name(weight.format));
    const bool bytes = weight.format == TensorFormat::fp8_block || weight.format == TensorFormat::fp8_row;
    const std::int64_t a_byte = bytes ? 1 : 2;
    for (std::int64_t expert = 0; expert < std::max<std::int64_t>(weight.own_experts, 1); ++expert) {
      bool codes = true;
      visit_stored(
          weight, weight.own_experts > 0 ? weight.name_of(expert) : weight.name,
          [&](const ExpectedTensor& tensor) {
            if (const StoredTensor* stored = find_tensor(tensor, source))
              formats[stored->name] = {name + (codes ? " codes" : " scales"), name, codes ? a_byte : 0};
            codes = false;
          });
    }
  });
  return formats;
}

void add_to(FormatTotal& total, const Format& format, const ConstTensor& tensor) {
  ++total.tensors;
  total.parameters += tensor.count() * format.values_per_element;
  total.bytes += static_cast<std::int64_t>(tensor.bytes());
}

void add_left_alone(Inspection& report, const StoredTensor& stored) {
  const std::string_view what = left_alone(*report.config, stored.name);
  if (what.empty()) return;
  auto found = std::find_if(report.left_alone.begin(), report.left_alone.end(),
                            [&](const LeftAlone& each) { return each.what == what; });
  if (found == report.left_alone.end())
    found = report.left_alone.insert(found, LeftAlone{.what = std::string(what)});
  ++found->tensors;
  found->bytes += static_cast<std::int64_t>(stored.tensor.bytes());
}

}  // namespace

Inspection inspect_model(const std::filesystem::path& folder) {
  Inspection report;
  report.folder = folder;
  Result<ModelConfig> config = read_model_config(folder);
  if (config.ok()) {
    report.config = std::move(config).value();
  } else {
    report.problems.add(config.status());
  }
  const WeightSource source = WeightSource::open(folder, FileAccess::map_or_read, report.problems);
  std::map<std::string, Format> formats;
  if (report.config) {
    read_stored_formats(*report.config, source);
    report.active_bytes = active_bytes_per_token(*report.config);
    formats = quantized_tensors(*report.config, source);
  }
  for (const StoredTensor& stored : source.tensors()) {
    const auto known = formats.find(stored.name);
    const Format format = known != formats.end() ? known->second : format_of(source, stored);
    report.tensors.push_back({.name = stored.name,
                              .file = source.files()[stored.file].path().filename().native(),
                              .format = format.label,
                              .shape = stored.tensor.shape,
                              .bytes = static_cast<std::int64_t>(stored.tensor.bytes())});
    auto total = std::find_if(report.formats.begin(), report.formats.end(),
                              [&](const FormatTotal& each) { return each.format == format.name; });
    if (total == report.formats.end())
      total = report.formats.insert(total, FormatTotal{.format = format.name});
    add_to(*total, format, stored.tensor);
    add_to(report.total, format, stored.tensor);
    if (report.config) add_left_alone(report, stored);
  }
  std::stable_sort(report.formats.begin(), report.formats.end(),
                   [](const FormatTotal& a, const FormatTotal& b) { return a.bytes > b.bytes; });
  // Where no file could be opened that is the problem; a list of all that is missing says no more.
  if (report.config && !source.files().empty()) compare_tensors(*report.config, source, report.problems);
  if (Status status = source.intact(); !status.ok()) report.problems.add(std::move(status));
  return report;
}

}  // namespace nibble
