// What `nibble tune` has measured of choices that move time alone, on machines of one kind: an entry a
// model's shapes and choice. A plan that is given such a table takes from it what its rules would otherwise
// guess.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace nibble {

struct TuningEntry {
  std::string model;  // of which shapes, as tuning_model() says it
  std::string field;  // of the plan
  std::string value;
  // Tokens a second of each value that was tried.
  std::vector<std::pair<std::string, double>> measured;

  bool operator==(const TuningEntry&) const = default;
};

struct TuningTable {
  std::string machine;  // the processor's or the GPU's own name
  std::string made;     // when and by which nibble
  std::vector<TuningEntry> entries;

  const TuningEntry* find(std::string_view model, std::string_view field) const;
  // In place of the one for the same shapes and field.
  void put(TuningEntry entry);

  // As a file has it: an entry a line, so that a difference between two shows what changed.
  std::string json() const;
  static Result<TuningTable> parse(std::string text);
  static Result<TuningTable> read(const std::string& file);

  // Of machine and entries: tables with equal ones make equal plans.
  std::string digest() const;
  bool operator==(const TuningTable&) const = default;
};

// A choice that a table may make, and the values that it may have.
struct TunedField {
  std::string_view name;  // of the plan's field
  std::span<const std::string_view> values;
};
std::span<const TunedField> tuned_fields();

}  // namespace nibble
