#include "server/api/unserved_paths.h"

#include <string>

namespace nibble::api {
namespace {

// Each with whatever follows.
constexpr std::string_view unserved[] = {"/v1/embeddings",
                                         "/v1/audio",
                                         "/v1/images",
                                         "/v1/moderations",
                                         "/v1/files",
                                         "/v1/batches",
                                         "/v1/fine_tuning",
                                         "/v1/assistants",
                                         "/v1/threads",
                                         "/v1/rerank",
                                         "/v1/score",
                                         "/v1/realtime",
                                         "/v1/vector_stores",
                                         "/v1/conversations",
                                         "/v1/containers",
                                         "/v1/evals",
                                         "/v1/responses/compact",
                                         "/v1/messages/batches",
                                         "/v1/complete"};

// Its name, if the path is one of those.
std::string_view unserved_name(std::string_view path) {
  for (const std::string_view name : unserved) {
    if (path.starts_with(name) && (path.size() == name.size() || path[name.size()] == '/')) return name;
  }
  return {};
}

}  // namespace

bool is_unserved(std::string_view path) { return !unserved_name(path).empty(); }

ApiError no_such_path(std::string_view path) {
  ApiError error{.status = 404,
                 .type = "not_found_error",
                 .message = "there is no such path; GET /openapi.json lists those there are"};
  if (const std::string_view name = unserved_name(path); !name.empty()) {
    error.message = std::string(name) + " is not served; use /v1/chat/completions or /v1/completions";
    if (name == "/v1/embeddings")
      error.message =
          "/v1/embeddings is not served: these models are made to write, and what their layers hold "
          "is no embedding of a text";
    error.code = "not_served";
  }
  return error;
}

}  // namespace nibble::api
