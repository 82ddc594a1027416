// The safetensors format: eight bytes of header length (little-endian), a JSON header that names each
// tensor with its dtype, shape and byte range, then the data. Everything a header claims is checked
// before any of it is used: see parse_safetensors_header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace nibble {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::u8;
  Shape shape;
  std::uint64_t offset = 0;  // of its first byte, from the beginning of the file

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(shape.count()) * dtype_bytes(dtype); }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // by ascending offset
};

// Reads the header of a whole file. What it returns is known to be true of the file: names are unique,
// every byte range matches its dtype and shape, ranges lie inside the file, do not overlap, and leave
// neither a gap nor bytes at the end. Allocates no more than twice the file's size (64 KiB aside).
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file);

// The beginning of a file that holds these tensors one after the other: the header's length and the header,
// padded with spaces to a multiple of 8 so that the data is aligned. Offsets are not read.
std::string write_safetensors_header(std::span<const SafetensorsEntry> tensors);

// model.safetensors.index.json: which shard holds which tensor.
struct SafetensorsIndex {
  std::vector<std::pair<std::string, std::string>> weight_map;  // tensor, file; ascending by tensor
  std::vector<std::string> shards;                              // ascending, each once

  // Null when the index does not name the tensor.
  const std::string* shard_of(const std::string& tensor) const;
};

// A shard is named by a plain file name; anything that could leave the folder is refused.
Result<SafetensorsIndex> parse_safetensors_index(std::string text);

}  // namespace nibble
