// The tensors of a model's folder by name, over one safetensors file or several shards with an index.
// They point straight into the mapped files, so weights are in memory once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/problems.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace nibble {

struct StoredTensor {
  std::string name;
  ConstTensor tensor;
  std::size_t file = 0;  // index into WeightSource::files()
};

class WeightSource {
 public:
  // Refuses a folder with anything wrong in its files; the status is the first problem found.
  static Result<WeightSource> open(const std::filesystem::path& folder,
                                   FileAccess access = FileAccess::map_or_read);
  // The same for reading once: tensors lie where the files have them, at any address, and none is copied.
  // What takes elements by their type (BasicTensor::as) cannot be used then.
  static Result<WeightSource> open_as_stored(const std::filesystem::path& folder);
  // Opens what can be opened and adds every problem to the list.
  static WeightSource open(const std::filesystem::path& folder, FileAccess access, Problems& problems);

  // Null when there is no such tensor.
  const StoredTensor* find(std::string_view name) const;
  // tensor "NAME" of FILE, for messages.
  std::string named(const StoredTensor& stored) const;
  // The tensor, or what is wrong with it: missing, another dtype, another shape.
  Result<ConstTensor> required(std::string_view name, DType dtype, const Shape& shape) const;

  // Gives a tensor of one value, if there is one of that name, this shape, of which each element is that
  // value.
  Status spread(std::string_view name, const Shape& shape);

  std::span<const StoredTensor> tensors() const { return tensors_; }  // ascending by name
  std::span<const MappedFile> files() const { return files_; }
  // Of all tensors together.
  std::int64_t bytes() const;

  // Maps what the page cache holds of the files (MappedFile::map_cached), for as long as map_seconds at most;
  // returns how many bytes that were. In huge pages that is everything in milliseconds. In small ones it is a
  // third of what faults would cost, but of all weights, of which the first token needs a part.
  static constexpr double map_seconds = 0.4;
  std::int64_t map_cached(ThreadPool& threads) const;

  // Copies a part of one tensor (MappedFile::read).
  Status read(std::span<const std::byte> part, std::byte* to) const;

  // Gives the memory of mapped pages back (MappedFile::release); `part` lies in one tensor.
  void release(std::span<const std::byte> part) const;

  // Whether the files still are what was opened; asked after each step (see MappedFile::intact).
  Status intact() const;

 private:
  enum class Alignment : std::uint8_t { of_elements, as_stored };

  static WeightSource open(const std::filesystem::path& folder, FileAccess access, Alignment alignment,
                           Problems& problems);
  void add_file(const std::filesystem::path& path, FileAccess access, Alignment alignment,
                Problems& problems);
  const MappedFile* file_of(std::span<const std::byte> part) const;
  void sort_and_refuse_twins(Problems& problems);

  std::vector<MappedFile> files_;
  std::vector<StoredTensor> tensors_;
  // Tensors whose offset in the file is no multiple of their element size, and those that were spread.
  std::vector<Buffer> realigned_;
};

}  // namespace nibble
