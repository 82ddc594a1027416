// The web page, built into the program: the files beside this one, as they are. It is a client of the API
// like any other and needs nothing from anywhere else.
#pragma once

#include <optional>
#include <string_view>

#include "server/http/response.h"

namespace nibble::page {

bool is_file(std::string_view path);

// The answer to a GET of one of the page's files; nothing for any other path. `known_tags` is the request's
// If-None-Match: who has the file as it is gets 304.
std::optional<http::Response> file_answer(std::string_view path, std::string_view known_tags);

}  // namespace nibble::page
