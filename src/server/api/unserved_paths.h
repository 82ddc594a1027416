// Paths of other APIs that are refused by name.
#pragma once

#include <string_view>

#include "server/api/api_error.h"

namespace nibble::api {

bool is_unserved(std::string_view path);
// 404, with the path's name where it is one of those.
ApiError no_such_path(std::string_view path);

}  // namespace nibble::api
