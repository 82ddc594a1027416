#include "ops/gated_delta/delta_state.h"

#include <cstring>

#include "base/check.h"

namespace nibble {
namespace {

struct Placer {
  std::byte* begin = nullptr;  // null: only counted
  std::int64_t bytes = 0;

  template <class T>
  T* place(std::int64_t count) {
    constexpr std::int64_t alignment = 64;
    T* at = begin == nullptr ? nullptr : reinterpret_cast<T*>(begin + bytes);
    bytes += (count * static_cast<std::int64_t>(sizeof(T)) + alignment - 1) / alignment * alignment;
    return at;
  }
};

DeltaState place_border(const DeltaShape& shape, int kept_inputs, Placer& placer) {
  DeltaState state;
  state.state = placer.place<float>(std::int64_t{shape.value_heads} * shape.key_dim * shape.value_dim);
  state.inputs = placer.place<float>(std::int64_t{kept_inputs} * shape.channels());
  return state;
}

DeltaState place(const DeltaShape& shape, Placer& placer) {
  NIBBLE_CHECK(delta_chunk % shape.kept_inputs() == 0, "a border's inputs lie in the same rows each time");
  DeltaState state = place_border(shape, shape.kept_inputs(), placer);
  state.decays = placer.place<double>(std::int64_t{delta_chunk} * shape.value_heads);
  state.keys = placer.place<float>(std::int64_t{delta_chunk} * shape.keys());
  state.updates = placer.place<float>(std::int64_t{delta_chunk} * shape.values());
  return state;
}

}  // namespace

std::int64_t delta_state_bytes(const DeltaShape& shape) {
  Placer counter;
  place(shape, counter);
  return counter.bytes;
}

std::int64_t delta_snapshot_bytes(const DeltaShape& shape) {
  Placer counter;
  place_border(shape, shape.taps, counter);
  return counter.bytes;
}

DeltaState delta_state_at(const DeltaShape& shape, std::byte* memory) {
  Placer placer{.begin = memory};
  return place(shape, placer);
}

DeltaState delta_snapshot_at(const DeltaShape& shape, std::byte* memory) {
  Placer placer{.begin = memory};
  return place_border(shape, shape.taps, placer);
}

void DeltaLayer::resume(int slot, int snapshot) const {
  const std::int64_t bytes = delta_snapshot_bytes(shape);
  std::memcpy(memory + slot * delta_state_bytes(shape), snapshots + snapshot * bytes,
              static_cast<std::size_t>(bytes));
}

}  // namespace nibble
