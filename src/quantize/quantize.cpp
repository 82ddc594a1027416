#include "quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>

#include "base/quote.h"
#include "base/thread_pool.h"
#include "checkpoint/text_file.h"
#include "formats/codec_kernels.h"
#include "formats/layout_stamp.h"
#include "formats/nvfp4.h"
#include "quantize/checkpoint_writer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_config_bytes = std::size_t{4} << 20;
// Source values that are worked on at once: enough for all threads, little beside a gigabyte.
constexpr std::int64_t slab_values = std::int64_t{8} << 20;
constexpr std::int64_t group_values = std::int64_t{1} << 18;  // of a thread's turn, where rows are short
constexpr std::int64_t copy_bytes = std::int64_t{16} << 20;

bool is_below(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// The destination with its parent resolved.
Result<fs::path> check_destination(const fs::path& source, const fs::path& destination) {
  fs::path plain = fs::absolute(destination).lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();
  std::error_code error;
  const fs::path parent = fs::canonical(plain.parent_path(), error);
  if (error) {
    return invalid_argument("there is no folder " + quote(plain.parent_path().native()) +
                            " to make DST in; make it first");
  }
  const fs::path resolved = parent / plain.filename(), from = fs::canonical(source, error);
  if (error) return not_found("cannot open " + quote(source.native()) + ": " + error.message());
  if (is_below(resolved, from)) {
    return invalid_argument("DST " + quote(destination.native()) + " lies inside SRC " +
                            quote(source.native()) + "; give a folder elsewhere");
  }
  return resolved;
}

// Refuses a disk that plainly has no room for what is still to be written. What an earlier run wrote has its
// place already.
Status check_space(const fs::path& parent, const fs::path& unfinished, std::int64_t bytes) {
  std::error_code error;
  std::int64_t held = 0;
  for (fs::directory_iterator entry(unfinished / "model", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    held += static_cast<std::int64_t>(entry->file_size(ignored));
  }
  const fs::space_info space = fs::space(parent, error);
  if (error) return {};
  if (static_cast<std::int64_t>(space.available) + held >= bytes) return {};
  return resource_exhausted("the quantized checkpoint takes " + std::to_string(bytes) +
                            " bytes, and the disk of " + quote(parent.native()) + " has " +
                            std::to_string(space.available) +
                            " left; make room or give a DST on another disk");
}

std::uint64_t identity_of(const ConversionPlan& plan, const WeightSource& source,
                          const ConversionOptions& options) {
  std::string text = std::to_string(static_cast<int>(options.encode.mxfp4_scale)) + " " +
                     std::to_string(options.encode.search_scales) + "\n" + plan.config + plan.index;
  for (const MappedFile& file : source.files()) {
    std::error_code ignored;
    text += file.path().native() + " " + std::to_string(file.bytes().size()) + " " +
            std::to_string(fs::last_write_time(file.path(), ignored).time_since_epoch().count()) + "\n";
  }
  for (const PlannedFile& file : plan.files) text += file.header;
  return content_hash({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

// Runs the jobs of a plan.
class Conversion {
 public:
  Conversion(const QuantizeOptions& options, const QuantizeCallbacks& callbacks, const WeightSource& source,
             const ConversionPlan& plan, CheckpointWriter& writer)
      : options_(options.conversion.encode),
        callbacks_(callbacks),
        source_(source),
        plan_(plan),
        writer_(writer),
        threads_(options.threads),
        global_scales_(static_cast<std::size_t>(plan.scale_groups)) {}

  Status run(QuantizeReport& report);

 private:
  Status convert(const ConversionJob& job, EncodeError& error);
  Status convert_matrix(const ConversionJob& job, std::int64_t index, float global_scale, EncodeError& error);
  Status encode_slab(const ConversionJob& job, std::int64_t index, std::int64_t begin, std::int64_t end,
                     float global_scale, EncodeError& error);
  Status copy(const ConversionJob& job);
  Result<float> global_scale(int group);
  Result<float> amax(const ConversionJob& job, const MatrixSource& matrix);
  static std::int64_t group_rows(WeightFormat format, std::int64_t cols);
  Status step(std::int64_t bytes);
  void release(const MatrixSource& matrix, std::int64_t begin, std::int64_t end) const;

  EncodeOptions options_;
  const QuantizeCallbacks& callbacks_;
  const WeightSource& source_;
  const ConversionPlan& plan_;
  CheckpointWriter& writer_;
  ThreadPool threads_;
  std::vector<float> global_scales_;  // 0: not known yet
  std::int64_t done_bytes_ = 0;
  // Of a slab.
  std::vector<std::uint8_t> codes_, scales_;
  std::vector<EncodeError> errors_;
};

std::int64_t Conversion::group_rows(WeightFormat format, std::int64_t cols) {
  const std::int64_t together = rows_together(format);
  const std::int64_t wanted = std::max<std::int64_t>(1, group_values / std::max<std::int64_t>(1, cols));
  return std::max(together, wanted / together * together);
}

Status Conversion::step(std::int64_t bytes) {
  done_bytes_ += bytes;
  if (callbacks_.progress)
    callbacks_.progress(static_cast<double>(done_bytes_), static_cast<double>(plan_.source_bytes));
  if (callbacks_.interrupted && callbacks_.interrupted()) {
    return Status(StatusCode::cancelled,
                  "interrupted; run the same command again to go on from what is done, or with --restart to "
                  "begin anew");
  }
  return {};
}

void Conversion::release(const MatrixSource& matrix, std::int64_t begin, std::int64_t end) const {
  const auto element = static_cast<std::int64_t>(dtype_bytes(matrix.tensor.dtype));
  const std::int64_t first = matrix.offset + begin * matrix.row_stride;
  const std::int64_t count =
      (end - begin - 1) * matrix.row_stride + (matrix.cols - 1) * matrix.col_stride + 1;
  source_.release({matrix.tensor.data + first * element, static_cast<std::size_t>(count * element)});
}

Status Conversion::encode_slab(const ConversionJob& job, std::int64_t index, std::int64_t begin,
                               std::int64_t end, float global_scale, EncodeError& error) {
  const MatrixSource& matrix = job.matrices[static_cast<std::size_t>(index)];
  EncodeOptions options = options_;
  options.format = job.format;
  const std::int64_t rows = end - begin, cols = matrix.cols, group = group_rows(job.format, cols);
  codes_.resize(static_cast<std::size_t>(code_bytes(job.format, rows, cols)));
  scales_.resize(static_cast<std::size_t>(scale_bytes_of(job.format, rows, cols)));
  errors_.assign(static_cast<std::size_t>(rows), {});
  threads_.parallel_for(static_cast<int>((rows + group - 1) / group), [&](int first, int last) {
    std::vector<float> values(static_cast<std::size_t>(std::min(group, rows) * cols));
    for (int g = first; g < last; ++g) {
      const std::int64_t row = g * group, count = std::min(group, rows - row);
      read_rows(matrix, begin + row, begin + row + count, values.data());
      encode_rows(options, global_scale, values.data(), count, cols,
                  {codes_.data() + code_bytes(job.format, row, cols),
                   scales_.data() + scale_bytes_of(job.format, row, cols)},
                  errors_.data() + row);
    }
  });
  for (std::size_t row = 0; row < errors_.size(); ++row) {
    if (errors_[row].not_finite > 0) {
      return broken_model("module " + quote(job.name) +
                          " holds a weight that is not finite, the first in row " +
                          std::to_string(begin + static_cast<std::int64_t>(row)) +
                          (job.matrices.size() > 1 ? " of expert " + std::to_string(index) : "") +
                          "; it would make its whole block NaN");
    }
    error.add(errors_[row]);
  }
  const PlannedTensor& codes = plan_.tensors[static_cast<std::size_t>(job.codes)];
  const PlannedTensor& scales = plan_.tensors[static_cast<std::size_t>(job.scales)];
  NIBBLE_RETURN_IF_ERROR(writer_.write(
      codes, index * code_bytes(job.format, matrix.rows, cols) + code_bytes(job.format, begin, cols),
      codes_));
  return writer_.write(
      scales, index * scale_bytes_of(job.format, matrix.rows, cols) + scale_bytes_of(job.format, begin, cols),
      scales_);
}

Status Conversion::convert_matrix(const ConversionJob& job, std::int64_t index, float global_scale,
                                  EncodeError& error) {
  const MatrixSource& matrix = job.matrices[static_cast<std::size_t>(index)];
  const std::int64_t together = rows_together(job.format);
  const std::int64_t slab =
      std::max(together, slab_values / std::max<std::int64_t>(1, matrix.cols) / together * together);
  for (std::int64_t row = 0; row < matrix.rows; row += slab) {
    const std::int64_t end = std::min(row + slab, matrix.rows);
    NIBBLE_RETURN_IF_ERROR(encode_slab(job, index, row, end, global_scale, error));
    // Transposed rows share pages: those go once the matrix is done.
    if (matrix.col_stride == 1) release(matrix, row, end);
    const std::int64_t element = static_cast<std::int64_t>(dtype_bytes(matrix.tensor.dtype));
    NIBBLE_RETURN_IF_ERROR(step((end - row) * matrix.cols * element));
  }
  if (matrix.col_stride != 1) release(matrix, 0, matrix.rows);
  return {};
}

Result<float> Conversion::amax(const ConversionJob& job, const MatrixSource& matrix) {
  const std::int64_t group = group_rows(job.format, matrix.cols), groups = (matrix.rows + group - 1) / group;
  std::vector<float> largest(static_cast<std::size_t>(groups));
  threads_.parallel_for(static_cast<int>(groups), [&](int first, int last) {
    std::vector<float> values(static_cast<std::size_t>(std::min(group, matrix.rows) * matrix.cols));
    for (int g = first; g < last; ++g) {
      const std::int64_t row = g * group, count = std::min(group, matrix.rows - row);
      read_rows(matrix, row, row + count, values.data());
      largest[static_cast<std::size_t>(g)] =
          best_codec_kernels().f32.amax(values.data(), static_cast<std::size_t>(count * matrix.cols));
    }
  });
  release(matrix, 0, matrix.rows);
  const float found = *std::max_element(largest.begin(), largest.end());
  if (!std::isfinite(found)) {
    return broken_model("module " + quote(job.name) +
                        " holds a weight that is not finite; it would make its whole block NaN");
  }
  return found;
}

Result<float> Conversion::global_scale(int group) {
  if (group < 0) return 1.0f;
  float& known = global_scales_[static_cast<std::size_t>(group)];
  if (known != 0) return known;
  float largest = 0;
  for (const ConversionJob& job : plan_.jobs) {
    if (job.scale_group != group) continue;
    for (const MatrixSource& matrix : job.matrices) {
      NIBBLE_ASSIGN(const float found, amax(job, matrix));
      largest = std::max(largest, found);
    }
  }
  return known = nvfp4_global_scale(largest);
}

Status Conversion::convert(const ConversionJob& job, EncodeError& error) {
  NIBBLE_ASSIGN(const float scale, global_scale(job.scale_group));
  if (job.global_scale >= 0) {
    std::uint8_t bytes[sizeof scale];
    std::memcpy(bytes, &scale, sizeof scale);
    NIBBLE_RETURN_IF_ERROR(
        writer_.write(plan_.tensors[static_cast<std::size_t>(job.global_scale)], 0, bytes));
  }
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(job.matrices.size()); ++i)
    NIBBLE_RETURN_IF_ERROR(convert_matrix(job, i, scale, error));
  return {};
}

Status Conversion::copy(const ConversionJob& job) {
  const MatrixSource& from = job.matrices.front();
  const auto element = static_cast<std::int64_t>(dtype_bytes(from.tensor.dtype));
  const auto* first = reinterpret_cast<const std::uint8_t*>(from.tensor.data) + from.offset * element;
  const PlannedTensor& to = plan_.tensors[static_cast<std::size_t>(job.codes)];
  if (from.col_stride != 1) {
    std::vector<std::uint8_t> picked(static_cast<std::size_t>(from.cols * element));
    for (std::int64_t i = 0; i < from.cols; ++i)
      std::memcpy(picked.data() + i * element, first + i * from.col_stride * element,
                  static_cast<std::size_t>(element));
    NIBBLE_RETURN_IF_ERROR(writer_.write(to, 0, picked));
    return step(job.source_bytes);
  }
  for (std::int64_t at = 0; at < job.source_bytes; at += copy_bytes) {
    const std::int64_t count = std::min(copy_bytes, job.source_bytes - at);
    const std::span<const std::uint8_t> part(first + at, static_cast<std::size_t>(count));
    NIBBLE_RETURN_IF_ERROR(writer_.write(to, at, part));
    source_.release(std::as_bytes(part));
    NIBBLE_RETURN_IF_ERROR(step(count));
  }
  return {};
}

Status Conversion::run(QuantizeReport& report) {
  for (std::size_t j = 0; j < plan_.jobs.size(); ++j) {
    const ConversionJob& job = plan_.jobs[j];
    EncodeError error;
    if (const EncodeError* known = writer_.done(j)) {
      error = *known;
      ++report.resumed_jobs;
      NIBBLE_RETURN_IF_ERROR(step(job.source_bytes));
    } else {
      NIBBLE_RETURN_IF_ERROR(job.quantize ? convert(job, error) : copy(job));
      // What was read means something only if the files still are what was opened.
      NIBBLE_RETURN_IF_ERROR(source_.intact());
      NIBBLE_RETURN_IF_ERROR(writer_.finish_job(j, error));
    }
    if (!job.quantize) continue;
    const MatrixSource& first = job.matrices.front();
    report.modules.push_back({.name = job.name,
                              .matrices = static_cast<std::int64_t>(job.matrices.size()),
                              .rows = first.rows,
                              .cols = first.cols,
                              .error = error});
    report.error.add(error);
  }
  return {};
}

// Files that hold weights in another form, or say where they lie.
bool is_weights(const std::string& name) {
  static constexpr std::string_view suffixes[] = {".safetensors",
                                                  ".bin",
                                                  ".pt",
                                                  ".pth",
                                                  ".gguf",
                                                  ".h5",
                                                  ".onnx",
                                                  ".npz",
                                                  ".msgpack",
                                                  ".safetensors.index.json",
                                                  ".bin.index.json"};
  return std::any_of(std::begin(suffixes), std::end(suffixes),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

Status copy_other_files(const fs::path& source, CheckpointWriter& writer, QuantizeReport& report) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator entry(source, error), end; !error && entry != end; entry.increment(error))
    paths.push_back(entry->path());
  if (error) return io_error("cannot read " + quote(source.native()) + ": " + error.message());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    const std::string name = path.filename().native();
    std::error_code ignored;
    if (name == "config.json" || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))
      continue;
    if (!fs::is_regular_file(path, ignored) || is_weights(name) || name.starts_with(".")) {
      report.left_files.push_back(name);
      continue;
    }
    NIBBLE_RETURN_IF_ERROR(writer.copy_file(path));
    report.copied_files.push_back(name);
  }
  return {};
}

}  // namespace

Result<QuantizeReport> quantize_checkpoint(const QuantizeOptions& options,
                                           const QuantizeCallbacks& callbacks) {
  NIBBLE_ASSIGN(const fs::path destination, check_destination(options.source, options.destination));
  NIBBLE_ASSIGN(const std::string config, read_text_file(options.source / "config.json", max_config_bytes));
  NIBBLE_ASSIGN(const WeightSource source, WeightSource::open_as_stored(options.source));
  NIBBLE_ASSIGN(const ConversionPlan plan, plan_conversion(source, config, options.conversion));
  const fs::path unfinished =
      destination.parent_path() / ("." + destination.filename().native() + ".quantizing");
  NIBBLE_RETURN_IF_ERROR(check_space(destination.parent_path(), unfinished, plan.written_bytes));
  NIBBLE_ASSIGN(CheckpointWriter writer,
                CheckpointWriter::open(destination, identity_of(plan, source, options.conversion), plan,
                                       options.restart));
  QuantizeReport report{.source_bytes = plan.source_bytes, .written_bytes = plan.written_bytes};
  Conversion conversion(options, callbacks, source, plan, writer);
  const Status converted = conversion.run(report);
  // Weights that cannot be quantized stay so; anything else may go better next time.
  if (converted.code() == StatusCode::broken_model) writer.abandon();
  NIBBLE_RETURN_IF_ERROR(converted);
  NIBBLE_RETURN_IF_ERROR(copy_other_files(options.source, writer, report));
  NIBBLE_RETURN_IF_ERROR(writer.write_file("config.json", plan.config));
  if (!plan.index.empty())
    NIBBLE_RETURN_IF_ERROR(writer.write_file("model.safetensors.index.json", plan.index));
  NIBBLE_RETURN_IF_ERROR(writer.commit());
  return report;
}

}  // namespace nibble
