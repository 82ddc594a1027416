// What is said of paths that other servers have and this one does not.
#pragma once

#include <string_view>

#include "server/api/api_error.h"

namespace nibble::api {

// One that clients are known to ask for.
bool is_unserved(std::string_view path);

// 404: with the reason where it is unserved.
ApiError no_such_path(std::string_view path);

}  // namespace nibble::api
