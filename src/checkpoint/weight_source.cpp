#include "checkpoint/weight_source.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <system_error>

#include "base/quote.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/text_file.h"

namespace nibble {
namespace {

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr std::size_t max_index_bytes = 100'000'000;

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Every tensor must lie where the index says, and every one the index names must be there.
void check_index(const SafetensorsIndex& index, const WeightSource& source, Problems& problems) {
  for (const StoredTensor& stored : source.tensors()) {
    const std::string file = source.files()[stored.file].path().filename().native();
    const std::string* shard = index.shard_of(stored.name);
    if (shard == nullptr) {
      problems.add(broken_model("tensor " + quote(stored.name) + " lies in " + quote(file) + ", but " +
                                index_name + " does not name it"));
    } else if (*shard != file) {
      problems.add(broken_model("tensor " + quote(stored.name) + " lies in " + quote(file) + ", but " +
                                index_name + " says " + quote(*shard)));
    }
  }
  const auto opened = [&](const std::string& shard) {
    return std::any_of(source.files().begin(), source.files().end(),
                       [&](const MappedFile& file) { return file.path().filename().native() == shard; });
  };
  for (const auto& [tensor, shard] : index.weight_map) {
    if (source.find(tensor) != nullptr || !opened(shard)) continue;
    problems.add(broken_model("tensor " + quote(tensor) + " is not in " + quote(shard) + ", where " +
                              index_name + " says it is"));
  }
}

// Shards (model-00002-of-00003.safetensors) that lie in the folder but are not in the index.
void check_unlisted_shards(const std::filesystem::path& folder, const SafetensorsIndex& index,
                           Problems& problems) {
  std::error_code error;
  std::vector<std::string> unlisted;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().native();
    if (!name.starts_with("model-") || !name.ends_with(".safetensors")) continue;
    if (!std::binary_search(index.shards.begin(), index.shards.end(), name)) unlisted.push_back(name);
  }
  std::sort(unlisted.begin(), unlisted.end());
  for (const std::string& name : unlisted) {
    problems.add(broken_model("shard " + quote(name) + " lies in the folder, but " + index_name +
                              " names no tensor in it"));
  }
}

}  // namespace

void WeightSource::add_file(const std::filesystem::path& path, FileAccess access, Alignment alignment,
                            Problems& problems) {
  Result<MappedFile> file = MappedFile::open(path, access);
  if (!file.ok()) return problems.add(file.status());
  const std::span<const std::byte> bytes = file->bytes();
  Result<SafetensorsHeader> header = parse_safetensors_header(bytes);
  // A header read from a file that changed meanwhile means nothing: say that first.
  if (Status status = file->intact(); !status.ok()) return problems.add(std::move(status));
  if (!header.ok()) return problems.add(header.status().with_context(quote(path.native())));
  tensors_.reserve(tensors_.size() + header->tensors.size());
  for (SafetensorsEntry& entry : header->tensors) {
    const std::byte* data = bytes.data() + entry.offset;
    if (alignment == Alignment::of_elements && entry.offset % dtype_bytes(entry.dtype) != 0) {
      Result<Buffer> copy = Buffer::allocate(entry.bytes());
      if (!copy.ok()) return problems.add(copy.status());
      if (entry.bytes() > 0) std::memcpy(copy->data(), data, entry.bytes());
      data = copy->data();
      realigned_.push_back(std::move(copy).value());
    }
    tensors_.push_back({std::move(entry.name), {data, entry.dtype, entry.shape}, files_.size()});
  }
  files_.push_back(std::move(file).value());
}

void WeightSource::sort_and_refuse_twins(Problems& problems) {
  std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.name != b.name ? a.name < b.name : a.file < b.file;
  });
  for (std::size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i].name != tensors_[i - 1].name) continue;
    problems.add(broken_model("tensor " + quote(tensors_[i].name) + " lies in " +
                              quote(files_[tensors_[i - 1].file].path().filename().native()) +
                              " and again in " + quote(files_[tensors_[i].file].path().filename().native())));
  }
}

WeightSource WeightSource::open(const std::filesystem::path& folder, FileAccess access, Problems& problems) {
  return open(folder, access, Alignment::of_elements, problems);
}

WeightSource WeightSource::open(const std::filesystem::path& folder, FileAccess access, Alignment alignment,
                                Problems& problems) {
  WeightSource source;
  // transformers looks in this order too.
  if (is_there(folder / single_name)) {
    source.add_file(folder / single_name, access, alignment, problems);
    source.sort_and_refuse_twins(problems);
    return source;
  }
  if (!is_there(folder / index_name)) {
    problems.add(not_found("there is neither " + std::string(single_name) + " nor " + index_name + " in " +
                           quote(folder.native()) + "; weights must be in the safetensors format"));
    return source;
  }
  Result<std::string> text = read_text_file(folder / index_name, max_index_bytes);
  if (!text.ok()) {
    problems.add(text.status());
    return source;
  }
  const Result<SafetensorsIndex> index = parse_safetensors_index(std::move(text).value());
  if (!index.ok()) {
    problems.add(index.status().with_context(quote((folder / index_name).native())));
    return source;
  }
  for (const std::string& shard : index->shards) {
    if (is_there(folder / shard)) {
      source.add_file(folder / shard, access, alignment, problems);
    } else {
      problems.add(not_found("shard " + quote(shard) + ", which " + index_name + " names, is not in " +
                             quote(folder.native()) + "; the download is incomplete"));
    }
  }
  source.sort_and_refuse_twins(problems);
  check_index(*index, source, problems);
  check_unlisted_shards(folder, *index, problems);
  return source;
}

Result<WeightSource> WeightSource::open(const std::filesystem::path& folder, FileAccess access) {
  Problems problems;
  WeightSource source = open(folder, access, problems);
  NIBBLE_RETURN_IF_ERROR(problems.first());
  return source;
}

Result<WeightSource> WeightSource::open_as_stored(const std::filesystem::path& folder) {
  Problems problems;
  WeightSource source = open(folder, FileAccess::map_or_read, Alignment::as_stored, problems);
  NIBBLE_RETURN_IF_ERROR(problems.first());
  return source;
}

const StoredTensor* WeightSource::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const StoredTensor& stored, std::string_view key) { return stored.name < key; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

Status WeightSource::spread(std::string_view name, const Shape& shape) {
  const StoredTensor* found = find(name);
  if (found == nullptr || found->tensor.shape.rank() > 1 || found->tensor.count() != 1) return {};
  ConstTensor& tensor = tensors_[static_cast<std::size_t>(found - tensors_.data())].tensor;
  const std::size_t element = dtype_bytes(tensor.dtype), count = static_cast<std::size_t>(shape.count());
  NIBBLE_ASSIGN(Buffer copies, Buffer::allocate(count * element));
  for (std::size_t i = 0; i < count; ++i) std::memcpy(copies.data() + i * element, tensor.data, element);
  tensor = {copies.data(), tensor.dtype, shape};
  realigned_.push_back(std::move(copies));
  return {};
}

std::string WeightSource::named(const StoredTensor& stored) const {
  return "tensor " + quote(stored.name) + " of " + files_[stored.file].path().filename().native();
}

Result<ConstTensor> WeightSource::required(std::string_view name, DType dtype, const Shape& shape) const {
  const StoredTensor* stored = find(name);
  if (stored == nullptr) return broken_model("tensor " + quote(name) + " is missing");
  const ConstTensor& tensor = stored->tensor;
  if (tensor.dtype != dtype) {
    return broken_model(named(*stored) + " is " + std::string(dtype_name(tensor.dtype)) + ", not " +
                        std::string(dtype_name(dtype)));
  }
  if (tensor.shape != shape) {
    return broken_model(named(*stored) + " has the shape " + tensor.shape.to_string() +
                        "; the configuration asks for " + shape.to_string());
  }
  return tensor;
}

std::int64_t WeightSource::bytes() const {
  std::int64_t total = 0;
  for (const StoredTensor& stored : tensors_) total += static_cast<std::int64_t>(stored.tensor.bytes());
  return total;
}

std::int64_t WeightSource::map_cached(ThreadPool& threads) const {
  using Clock = std::chrono::steady_clock;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(map_seconds));
  constexpr std::size_t part = std::size_t{32} << 20;
  struct Range {
    const MappedFile* file;
    std::size_t offset;
  };
  std::vector<Range> ranges;
  for (const MappedFile& file : files_) {
    for (std::size_t at = 0; at < file.bytes().size(); at += part) ranges.push_back({&file, at});
  }
  std::atomic<std::int64_t> mapped = 0;
  threads.parallel_for(static_cast<int>(ranges.size()), [&](int begin, int end) {
    for (int i = begin; i < end && Clock::now() < deadline; ++i) {
      const Range& range = ranges[static_cast<std::size_t>(i)];
      mapped += static_cast<std::int64_t>(range.file->map_cached(range.offset, part));
    }
  });
  return mapped;
}

const MappedFile* WeightSource::file_of(std::span<const std::byte> part) const {
  for (const MappedFile& file : files_) {
    const std::span<const std::byte> all = file.bytes();
    if (std::less_equal<>()(all.data(), part.data()) &&
        std::less_equal<>()(part.data() + part.size(), all.data() + all.size()))
      return &file;
  }
  return nullptr;  // it was realigned
}

Status WeightSource::read(std::span<const std::byte> part, std::byte* to) const {
  if (part.empty()) return {};
  const MappedFile* file = file_of(part);
  if (file != nullptr)
    return file->read(static_cast<std::size_t>(part.data() - file->bytes().data()), {to, part.size()});
  std::memcpy(to, part.data(), part.size());
  return {};
}

void WeightSource::release(std::span<const std::byte> part) const {
  if (const MappedFile* file = file_of(part)) file->release(part);
}

Status WeightSource::intact() const {
  for (const MappedFile& file : files_) NIBBLE_RETURN_IF_ERROR(file.intact());
  return {};
}

}  // namespace nibble
