// The model as /v1/models tells it, in the words of the API that the client speaks.
#pragma once

#include <cstdint>
#include <string>

namespace nibble::api {

struct ServedModel {
  std::string name;
  std::int64_t created = 0;  // seconds since 1970
  int max_model_len = 0;

  // By itself, or as the one of a list.
  std::string openai_json(bool listed) const;
  std::string anthropic_json(bool listed) const;
};

}  // namespace nibble::api
