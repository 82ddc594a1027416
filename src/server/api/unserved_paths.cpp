#include "server/api/unserved_paths.h"

#include <string>

namespace nibble::api {
namespace {

struct Unserved {
  std::string_view path, why;
};

constexpr std::string_view no_embedding =
    "these models are made to write, and what their layers hold is no embedding of a text";
constexpr std::string_view no_score =
    "these models are made to write and compare no texts; /v1/completions with echo, logprobs and max_tokens "
    "0 tells how likely a text is";
constexpr std::string_view nothing_to_tell =
    "use /v1/chat/completions, /v1/completions, /v1/responses or /v1/messages";
// Paths of OpenAI's API and of vLLM's, whatever follows.
constexpr Unserved unserved[] = {{"/v1/embeddings", no_embedding},
                                 {"/embeddings", no_embedding},
                                 {"/pooling", no_embedding},
                                 {"/v1/score", no_score},
                                 {"/score", no_score},
                                 {"/v1/rerank", no_score},
                                 {"/v2/rerank", no_score},
                                 {"/rerank", no_score},
                                 {"/classify", no_score},
                                 {"/v1/audio", nothing_to_tell},
                                 {"/v1/images", nothing_to_tell},
                                 {"/v1/moderations", nothing_to_tell},
                                 {"/v1/files", nothing_to_tell},
                                 {"/v1/batches", nothing_to_tell},
                                 {"/v1/fine_tuning", nothing_to_tell},
                                 {"/v1/assistants", nothing_to_tell},
                                 {"/v1/threads", nothing_to_tell},
                                 {"/v1/realtime", nothing_to_tell},
                                 {"/v1/vector_stores", nothing_to_tell},
                                 {"/v1/conversations", nothing_to_tell},
                                 {"/v1/containers", nothing_to_tell},
                                 {"/v1/evals", nothing_to_tell},
                                 {"/v1/responses/compact", nothing_to_tell},
                                 {"/v1/messages/batches", nothing_to_tell},
                                 {"/v1/complete", nothing_to_tell}};

const Unserved* find(std::string_view path) {
  for (const Unserved& one : unserved) {
    if (path.starts_with(one.path) && (path.size() == one.path.size() || path[one.path.size()] == '/'))
      return &one;
  }
  return nullptr;
}

}  // namespace

bool is_unserved(std::string_view path) { return find(path) != nullptr; }

ApiError no_such_path(std::string_view path) {
  ApiError error{.status = 404,
                 .type = "not_found_error",
                 .message = "there is no such path; GET /openapi.json lists those there are"};
  if (const Unserved* one = find(path)) {
    error.message = std::string(one->path) + " is not served: " + std::string(one->why);
    error.code = "not_served";
  }
  return error;
}

}  // namespace nibble::api
