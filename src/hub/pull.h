// A model from a hub into the Hugging Face cache. What lies there afterwards is what huggingface_hub would
// have put there, of the files that nibble needs.
//
// A snapshot appears when every content is there and has been held against its hash: links first, config.json
// last among them, then the reference. So a pull may be killed at any moment; the same command goes on from
// there, and until it is done the revision that was there before stays the one that is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cache_place.h"
#include "hub/download.h"
#include "hub/hub_client.h"
#include "hub/listing.h"

namespace nibble {

struct PullOptions {
  HubName name;
  std::filesystem::path cache;
  HubAccess access;
  FetchSettings settings;
  int connections = 8;
  bool verify = false;  // blobs that are there already are held against their hashes too
};

// What a pull would fetch, as the hub lists it.
struct PullPlan {
  std::string commit;
  std::vector<HubFile> files;
  std::int64_t bytes = 0;    // of all files
  std::int64_t missing = 0;  // of those whose blobs are not in the cache
};

// Who watches a pull. note() may be called by any thread.
struct PullObserver {
  std::function<void(const std::string& sentence)> note;
  std::function<void(const DownloadProgress& progress)> progress;
  // Sees the folder's small files before the weights are fetched; a Status that is not ok ends the pull.
  std::function<Status(std::string config, std::string generation_config)> accept;
};

struct PullReport {
  std::filesystem::path snapshot;
  std::string commit;
  std::int64_t bytes = 0;    // of all files
  std::int64_t fetched = 0;  // of them, by this run
};

// Asks the hub; writes nothing.
Result<PullPlan> plan_pull(const PullOptions& options, const PullObserver& observer);

Result<PullReport> pull(const PullOptions& options, const PullPlan& plan, const PullObserver& observer);

}  // namespace nibble
