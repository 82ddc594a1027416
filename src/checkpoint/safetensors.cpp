#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <tuple>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/quote.h"

namespace nibble {
namespace {

constexpr std::uint64_t length_bytes = 8;
// The limit of the reference implementation.
constexpr std::uint64_t max_header_bytes = 100'000'000;

struct StoredDType {
  std::string_view name;
  DType dtype;
};
constexpr std::array stored_dtypes = {
    StoredDType{"BOOL", DType::boolean},    StoredDType{"U8", DType::u8},
    StoredDType{"I8", DType::i8},           StoredDType{"U16", DType::u16},
    StoredDType{"I16", DType::i16},         StoredDType{"U32", DType::u32},
    StoredDType{"I32", DType::i32},         StoredDType{"U64", DType::u64},
    StoredDType{"I64", DType::i64},         StoredDType{"F8_E4M3", DType::f8_e4m3},
    StoredDType{"F8_E5M2", DType::f8_e5m2}, StoredDType{"F8_E8M0", DType::f8_e8m0},
    StoredDType{"F16", DType::f16},         StoredDType{"BF16", DType::bf16},
    StoredDType{"F32", DType::f32},         StoredDType{"F64", DType::f64},
};

Result<DType> dtype_from(std::string_view name) {
  std::string known;
  for (const StoredDType& stored : stored_dtypes) {
    if (stored.name == name) return stored.dtype;
    known += (known.empty() ? "" : ", ") + std::string(stored.name);
  }
  return broken_model("has the unknown dtype " + quote(name) + "; known are " + known);
}

// The members a tensor's description must have, each once (the JSON reader refuses duplicates).
struct Description {
  std::optional<JsonValue> dtype, shape, offsets;
};

Result<Description> describe(const JsonValue& value) {
  if (!value.is_object())
    return broken_model("is described by " + std::string(json_type_name(value.type())) + ", not an object");
  Description found;
  for (const auto& [key, member] : value.members()) {
    if (key == "dtype") {
      found.dtype = member;
    } else if (key == "shape") {
      found.shape = member;
    } else if (key == "data_offsets") {
      found.offsets = member;
    } else {
      return broken_model("has the unknown member " + quote(key));
    }
  }
  if (!found.dtype || !found.dtype->is_string()) return broken_model("has no dtype");
  if (!found.shape || !found.shape->is_array()) return broken_model("has no shape");
  if (!found.offsets || !found.offsets->is_array() || found.offsets->size() != 2) {
    return broken_model("has no data_offsets [begin, end]");
  }
  return found;
}

Result<Shape> shape_from(const JsonValue& value) {
  if (value.size() > Shape::max_rank) {
    return broken_model("has " + std::to_string(value.size()) + " dimensions; at most " +
                        std::to_string(Shape::max_rank) + " are supported");
  }
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::size_t rank = 0;
  for (const JsonValue& extent : value.elements()) {
    if (!extent.is_integer() || extent.as_integer() < 0) {
      return broken_model("has a shape with an extent that is no whole number of 64 bits");
    }
    extents[rank++] = extent.as_integer();
  }
  Result<Shape> shape = Shape::from_untrusted({extents.data(), rank});
  if (!shape.ok()) return broken_model("has " + shape.status().message());
  return shape;
}

// One tensor, checked by itself; data_bytes is what follows the header.
Result<SafetensorsEntry> entry_from(std::string_view name, const JsonValue& value, std::uint64_t data_bytes) {
  NIBBLE_ASSIGN(const Description found, describe(value));
  SafetensorsEntry entry;
  NIBBLE_ASSIGN(entry.dtype, dtype_from(found.dtype->as_string()));
  NIBBLE_ASSIGN(entry.shape, shape_from(*found.shape));
  std::array<std::uint64_t, 2> offsets{};
  std::size_t i = 0;
  for (const JsonValue& offset : found.offsets->elements()) {
    if (!offset.is_integer() || offset.as_integer() < 0) {
      return broken_model("has a data offset that is no whole number of 64 bits");
    }
    offsets[i++] = static_cast<std::uint64_t>(offset.as_integer());
  }
  const auto [begin, end] = offsets;
  const std::string range = "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
  if (begin > end) return broken_model("has the byte range " + range + ", which ends before it begins");
  if (end > data_bytes) {
    return broken_model("has the byte range " + range + ", past the end of the file's " +
                        std::to_string(data_bytes) + " bytes of data; the file is truncated or damaged");
  }
  if (end - begin != entry.bytes()) {
    return broken_model("has the byte range " + range + " of " + std::to_string(end - begin) +
                        " bytes, but " + std::string(dtype_name(entry.dtype)) + " " +
                        entry.shape.to_string() + " takes " + std::to_string(entry.bytes()));
  }
  entry.name = name;
  entry.offset = begin;  // from the data; the caller adds where the data begins
  return entry;
}

Status in_tensor(std::string_view name, const Status& status) {
  return {status.code(), "tensor " + quote(name) + " " + status.message()};
}

Status check_metadata(const JsonValue& value) {
  const auto wrong = [] { return broken_model("__metadata__ is not an object of strings"); };
  if (!value.is_object()) return wrong();
  for (const auto& [key, member] : value.members()) {
    if (!member.is_string()) return wrong();
  }
  return {};
}

// Tensors by ascending offset must tile the data exactly.
Status check_tiling(const std::vector<SafetensorsEntry>& tensors, std::uint64_t data_bytes) {
  std::uint64_t end = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.offset < end) {
      return broken_model("tensors " + quote(previous->name) + " and " + quote(entry.name) + " overlap");
    }
    if (entry.offset > end) {
      return broken_model(std::to_string(entry.offset - end) + " bytes before tensor " + quote(entry.name) +
                          " belong to no tensor");
    }
    end = entry.offset + entry.bytes();
    previous = &entry;
  }
  if (end < data_bytes) {
    return broken_model(std::to_string(data_bytes - end) + " bytes after the last tensor belong to none");
  }
  return {};
}

Result<std::string_view> header_text(std::span<const std::byte> file) {
  if (file.size() < length_bytes) {
    return broken_model("a safetensors file begins with 8 bytes of header length, but the file has " +
                        std::to_string(file.size()) + " bytes");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  if (length > max_header_bytes) {
    return broken_model("the header claims " + std::to_string(length) + " bytes; at most " +
                        std::to_string(max_header_bytes) + " are allowed");
  }
  if (length > file.size() - length_bytes) {
    return broken_model("the header claims " + std::to_string(length) + " bytes, but only " +
                        std::to_string(file.size() - length_bytes) + " follow; the file is truncated");
  }
  return std::string_view(reinterpret_cast<const char*>(file.data()) + length_bytes, length);
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file) {
  NIBBLE_ASSIGN(const std::string_view text, header_text(file));
  // The text is held once; its values (16 bytes each, in a vector that grows by doubling) and then the
  // entries must fit into as much again.
  const JsonLimits limits{.max_bytes = max_header_bytes,
                          .max_depth = 4,
                          .max_values = std::max<std::size_t>(4096, file.size() / 48)};
  Result<JsonDocument> document = JsonDocument::parse(std::string(text), limits);
  if (!document.ok()) return broken_model("the header is " + document.status().message());
  const JsonValue root = document->root();
  if (!root.is_object()) return broken_model("the header is no JSON object");

  const std::uint64_t data_begin = length_bytes + text.size();
  const std::uint64_t data_bytes = file.size() - data_begin;
  SafetensorsHeader header;
  header.tensors.reserve(root.size());
  for (const auto& [name, value] : root.members()) {
    if (name == "__metadata__") {
      NIBBLE_RETURN_IF_ERROR(check_metadata(value));
      continue;
    }
    Result<SafetensorsEntry> entry = entry_from(name, value, data_bytes);
    if (!entry.ok()) return in_tensor(name, entry.status());
    header.tensors.push_back(std::move(entry).value());
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              // An empty tensor may share its offset with the one that begins there.
              return std::tuple(a.offset, a.bytes()) < std::tuple(b.offset, b.bytes());
            });
  NIBBLE_RETURN_IF_ERROR(check_tiling(header.tensors, data_bytes));
  for (SafetensorsEntry& entry : header.tensors) entry.offset += data_begin;
  return header;
}

std::string write_safetensors_header(std::span<const SafetensorsEntry> tensors) {
  std::string header(length_bytes, '\0');
  JsonWriter json(header);
  json.begin_object().key("__metadata__").begin_object().member("format", "pt").end_object();
  std::uint64_t offset = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    const auto stored = std::find_if(stored_dtypes.begin(), stored_dtypes.end(),
                                     [&](const StoredDType& each) { return each.dtype == tensor.dtype; });
    NIBBLE_CHECK(stored != stored_dtypes.end());
    json.key(tensor.name).begin_object().member("dtype", stored->name).key("shape").begin_array();
    for (const std::int64_t extent : tensor.shape.extents()) json.value(extent);
    json.end_array().key("data_offsets").begin_array().value(offset).value(offset + tensor.bytes());
    json.end_array().end_object();
    offset += tensor.bytes();
  }
  json.end_object();
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::uint64_t length = header.size() - length_bytes;
  for (std::size_t i = 0; i < length_bytes; ++i) header[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return header;
}

const std::string* SafetensorsIndex::shard_of(const std::string& tensor) const {
  const auto found =
      std::lower_bound(weight_map.begin(), weight_map.end(), tensor,
                       [](const auto& pair, const std::string& name) { return pair.first < name; });
  return found != weight_map.end() && found->first == tensor ? &found->second : nullptr;
}

Result<SafetensorsIndex> parse_safetensors_index(std::string text) {
  // A line of an index is two values and, as names are in practice, well over 64 bytes.
  const JsonLimits limits{.max_bytes = max_header_bytes,
                          .max_depth = 8,
                          .max_values = std::max<std::size_t>(4096, text.size() / 32)};
  Result<JsonDocument> document = JsonDocument::parse(std::move(text), limits);
  if (!document.ok()) return broken_model(document.status().message());
  const std::optional<JsonValue> map = document->root().find("weight_map");
  if (!map || !map->is_object() || map->size() == 0) return broken_model("there is no object \"weight_map\"");
  SafetensorsIndex index;
  index.weight_map.reserve(map->size());
  for (const auto& [tensor, file] : map->members()) {
    if (!file.is_string()) return broken_model("tensor " + quote(tensor) + " is mapped to no file name");
    const std::string_view name = file.as_string();
    if (name.find('/') != name.npos || name.find('\0') != name.npos || !name.ends_with(".safetensors")) {
      return broken_model("tensor " + quote(tensor) + " is mapped to " + quote(name) +
                          ", which is not the plain name of a .safetensors file");
    }
    index.weight_map.emplace_back(tensor, name);
    index.shards.emplace_back(name);
  }
  std::sort(index.weight_map.begin(), index.weight_map.end());
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  return index;
}

}  // namespace nibble
