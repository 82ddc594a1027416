// A JSON value that was read, written out again; and what reading a text will take.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/json.h"
#include "base/json_writer.h"

namespace nibble {

// Writes the value; numbers as they were read.
void copy_json(JsonValue value, JsonWriter& writer);

// How many values and keys a document of this text will have, at most: told from its punctuation, before
// anything is made of it. Each takes 16 bytes.
std::size_t most_json_values(std::string_view text);

}  // namespace nibble
