// Any bytes as the body of a request: read, or refused by an error that a client can read.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/json.h"
#include "server/api/generation_request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nibble;
  const std::string body(reinterpret_cast<const char*>(data), size);
  for (const api::Endpoint endpoint :
       {api::Endpoint::chat, api::Endpoint::completions, api::Endpoint::responses, api::Endpoint::messages}) {
    const auto parsed = api::parse_generation_request(endpoint, body, 1000);
    if (const auto* error = std::get_if<api::ApiError>(&parsed)) {
      NIBBLE_CHECK(error->status == 400 && !error->message.empty());
      NIBBLE_CHECK(JsonDocument::parse(error->json()).ok());
      NIBBLE_CHECK(JsonDocument::parse(error->anthropic_json()).ok());
    } else {
      const auto& request = std::get<api::GenerationRequest>(parsed);
      NIBBLE_CHECK(request.n >= 1 && request.n <= api::most_choices);
      for (const TokenBias& bias : request.sampling.logit_bias)
        NIBBLE_CHECK(bias.id >= 0 && bias.id < 1000 && bias.bias >= -100 && bias.bias <= 100);
      for (const TokenId id : request.sampling.stop_token_ids) NIBBLE_CHECK(id >= 0 && id < 1000);
      for (const TokenId id : request.sampling.allowed_token_ids) NIBBLE_CHECK(id >= 0 && id < 1000);
    }
  }
  return 0;
}
