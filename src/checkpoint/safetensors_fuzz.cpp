// Arbitrary bytes as a safetensors file and as an index: whatever is accepted must keep what the headers
// promise.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace nibble {
namespace {

void check_header(std::span<const std::byte> file) {
  const Result<SafetensorsHeader> header = parse_safetensors_header(file);
  if (!header.ok()) return;
  std::uint64_t end = header->tensors.empty() ? file.size() : header->tensors.front().offset;
  for (const SafetensorsEntry& entry : header->tensors) {
    NIBBLE_CHECK(entry.offset == end, "tensors tile the data");
    end += entry.bytes();
  }
  NIBBLE_CHECK(end == file.size(), "nothing follows the last tensor");
}

void check_index(std::string text) {
  const Result<SafetensorsIndex> index = parse_safetensors_index(std::move(text));
  if (!index.ok()) return;
  for (const auto& [tensor, shard] : index->weight_map) {
    NIBBLE_CHECK(*index->shard_of(tensor) == shard);
    NIBBLE_CHECK(shard.find('/') == shard.npos, "a shard stays in its folder");
  }
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nibble::check_header(std::as_bytes(std::span(data, size)));
  nibble::check_index(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
