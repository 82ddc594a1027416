// The shapes of answers as the served description has them.
#pragma once

#include <span>
#include <string_view>

namespace nibble::api {

struct Schema {
  std::string_view name;
  std::string_view json;
};

std::span<const Schema> answer_schemas();

}  // namespace nibble::api
