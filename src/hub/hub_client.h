// Questions to a hub: which commit a revision names, which files it has, and where their contents are. Tries
// again where that may help, and says in a sentence what is wrong where it does not.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cache_place.h"
#include "hub/listing.h"
#include "net/http_fetch.h"

namespace nibble {

// Where the hub is and who asks, as huggingface_hub's variables say.
struct HubAccess {
  Url endpoint;              // HF_ENDPOINT, or https://huggingface.co
  std::string token;         // HF_TOKEN, or what the file HF_TOKEN_PATH or HF_HOME/token holds; empty: none
  std::string token_source;  // for errors: "HF_TOKEN", or the file's name
  std::chrono::milliseconds patience{10'000};  // HF_HUB_DOWNLOAD_TIMEOUT, in seconds

  // A malformed variable is an error that names it.
  static Result<HubAccess> of_this_process(const HubEnvironment& environment);
};

class HubClient {
 public:
  // Both outlive it. `note` is told when it waits and tries again.
  HubClient(const HubAccess& access, const FetchSettings& settings,
            std::function<void(const std::string&)> note)
      : access_(access), settings_(settings), fetcher_(settings), note_(std::move(note)) {}

  Result<std::string> commit(const HubName& name);
  Result<std::vector<HubFile>> files(const HubName& name, const std::string& commit);

 private:
  // `address` beside the endpoint's own path, or a whole one from a Link header. Gives the body.
  Result<std::string> ask(const HubName& name, const Url& url, std::string& link);

  const HubAccess& access_;
  const FetchSettings& settings_;
  HttpFetcher fetcher_;
  std::function<void(const std::string&)> note_;
};

// <endpoint>/org/name/resolve/COMMIT/PATH
Url content_url(const HubAccess& access, const std::string& name, const std::string& commit,
                const std::string& path);

// What an HTTP status of 400 or more means to the user.
Status explain_refusal(const HttpAnswer& answer, const HubAccess& access, const HubName& name);

// Sleeps, but no longer than until it is cancelled; false then.
bool sleep_for(std::chrono::milliseconds time, const std::function<bool()>& cancelled);

}  // namespace nibble
