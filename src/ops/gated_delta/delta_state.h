// What a layer with a gated delta rule keeps of one sequence, however long that is: its state at the last
// border of a chunk, the rows of the chunk that is open, and the last inputs of the short convolution.
//
// Borders are the positions 0, 64, 128, ... of the sequence, wherever steps begin or end. So what a position
// gives depends on the sequence alone, and a state that lies at a border can be taken up by any step.
//
// A step's last rows may be drafts. If they fail they are as if they had never been, for the next step's rows
// are written over them: what is kept of a row lies where its position says. Only a border behind one could
// not be undone. So no draft ends a chunk, and the inputs ahead of a step's drafts stay as well.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nibble {

inline constexpr int delta_chunk = 64;  // positions

struct DeltaShape {
  int key_heads = 0;
  int value_heads = 0;  // a multiple of key_heads; value head j reads key head j * key_heads / value_heads
  int key_dim = 0;
  int value_dim = 0;
  int taps = 0;    // of the convolution, its own position included; at least 1
  int drafts = 0;  // of a step and sequence at most; with the taps at most delta_chunk

  int keys() const { return key_heads * key_dim; }
  int values() const { return value_heads * value_dim; }
  // What is convolved: the queries of all heads, their keys, and the values.
  int channels() const { return 2 * keys() + values(); }
  // Rows of the convolution's inputs that a sequence keeps, a divisor of delta_chunk: those that the next row
  // reads, also where all drafts fail, and one more, so that a block may keep the row's while others still
  // read.
  int kept_inputs() const { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(taps + drafts))); }
  int key_head_of(int value_head) const { return value_head / (value_heads / key_heads); }
  bool operator==(const DeltaShape&) const = default;
};

// Which of `kept` rows, a power of two, has a position's input: in turn from the last one to the first. Row 0
// has the one ahead of a border, so what counts at a border are the first `taps`.
constexpr int input_row(int position, int kept) { return ~position & (kept - 1); }

// Bytes of one sequence's state in one layer; a multiple of 64.
std::int64_t delta_state_bytes(const DeltaShape& shape);

// Bytes of it at a border, where no chunk is open: of a snapshot. What counts there comes first.
std::int64_t delta_snapshot_bytes(const DeltaShape& shape);

// Where the parts of a state lie. Nothing of it is read before it is written: positions below the first
// border have no state before them, and the first position has no inputs before it.
struct DeltaState {
  float* state = nullptr;    // [value_heads, key_dim, value_dim], at the last border
  float* inputs = nullptr;   // [kept_inputs, channels], by input_row; of a snapshot [taps, channels]
  double* decays = nullptr;  // [delta_chunk, value_heads]: sums of g from the chunk's first position on
  float* keys = nullptr;     // [delta_chunk, key_heads, key_dim], normalised
  float* updates = nullptr;  // [value_heads, delta_chunk, value_dim]
};
DeltaState delta_state_at(const DeltaShape& shape, std::byte* memory);
DeltaState delta_snapshot_at(const DeltaShape& shape, std::byte* memory);

// One layer's states: slot i begins at memory + i * delta_state_bytes, a multiple of 64. Its snapshots
// likewise.
struct DeltaLayer {
  DeltaShape shape;
  std::byte* memory = nullptr;
  std::byte* snapshots = nullptr;

  DeltaState slot(int index) const {
    return delta_state_at(shape, memory + index * delta_state_bytes(shape));
  }
  // Of it, `state` and `inputs`.
  DeltaState snapshot(int index) const {
    return delta_snapshot_at(shape, snapshots + index * delta_snapshot_bytes(shape));
  }
  // The slot's sequence goes on behind the snapshot's position.
  void resume(int slot, int snapshot) const;
};

// What a store has of each layer.
struct StateCounts {
  int slots = 0, snapshots = 0;
  int drafts = 0;  // DeltaShape's
};

// What a state is at the border `position` is kept in a snapshot's slot.
struct BorderState {
  int position = 0;
  int slot = 0;
};

// Rows [row_begin, row_begin + row_count) of the step are positions first_position, ... of the sequence whose
// state lies in `slot`; its earlier positions were given before.
struct StateRows {
  int row_begin = 0;
  int row_count = 0;
  int first_position = 0;
  int slot = 0;
  std::span<const BorderState> kept =
      {};  // on the way; positions behind the first row's, up to the next row's
};

}  // namespace nibble
