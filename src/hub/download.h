// Contents of files, by several connections at once, into the cache's blobs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/download_queue.h"
#include "hub/hub_client.h"
#include "hub/listing.h"
#include "hub/partial_blob.h"

namespace nibble {

struct DownloadOptions {
  HubName name;
  std::string commit;
  std::filesystem::path blobs;
  int connections = 8;
};

// How far a download is; any thread may look.
struct DownloadProgress {
  std::int64_t done = 0;   // bytes, those of earlier runs included
  std::int64_t fresh = 0;  // bytes that this run fetched
  std::int64_t total = 0;
};

class Download {
 public:
  using Note = std::function<void(const std::string&)>;
  using Watch = std::function<void(const DownloadProgress&)>;

  // All outlive it. `note` may be called by any thread.
  Download(const DownloadOptions& options, const HubAccess& access, const FetchSettings& settings, Note note)
      : options_(options), access_(access), settings_(settings), note_(std::move(note)) {}

  // A file whose blob is not there, with what an earlier run left of it.
  Status add(const HubFile& file);
  // Bytes that are still to come.
  std::int64_t missing() const;
  // Until every file is a blob; `watch` is called several times a second, by the calling thread.
  Status run(const Watch& watch);

 private:
  struct Target {
    HubFile file;
    PartialBlob blob;
    std::mutex mutex;           // of `direct`
    std::optional<Url> direct;  // where a redirect led; asked without the hub, while it works
  };
  // What a connection does with the answer to one run.
  struct Arrival;

  void work(unsigned number);
  bool fetch(HttpFetcher& fetcher, const BlockRun& run, int& failures, unsigned number);
  FetchOutcome request(HttpFetcher& fetcher, const BlockRun& run, Arrival& arrival);
  Status take(const HttpAnswer& head, std::string_view bytes, Arrival& arrival);
  Status begin_body(const HttpAnswer& head, Arrival& arrival) const;
  NetFailure judge_fruitless(const HttpAnswer& head, Arrival& arrival) const;
  Status complete(std::size_t index);
  void fail(Status status);
  bool stopped() const;

  const DownloadOptions& options_;
  const HubAccess& access_;
  const FetchSettings& settings_;
  const Note note_;
  std::vector<std::unique_ptr<Target>> targets_;
  DownloadQueue queue_;
  std::atomic<std::int64_t> fresh_{0};
  std::atomic<std::int64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  int working_ = 0;     // threads; guarded by mutex_
  int incomplete_ = 0;  // files that are no blobs yet; guarded by mutex_
  Status outcome_;      // the first failure; guarded by mutex_
};

}  // namespace nibble
