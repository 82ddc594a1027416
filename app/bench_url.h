// nibble bench --url: load on a running server, and what its clients see of it. Any server that speaks
// OpenAI's API: streams are asked for, times are those of the arrival of their chunks.
//
// Closed loop: so many requests in flight, each followed by the next. Open loop: requests begin at random
// times of a given rate, whatever became of those before; their times count from when they were to begin, so
// that a server that keeps its clients waiting cannot hide it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "app/bench_load.h"
#include "app/cli.h"

namespace nibble {

struct UrlBenchOptions {
  std::string url;
  std::string model;  // empty: the server's first
  std::string api_key;
  bool chat = false;  // else completions
  int input_len = 0;
  int output_len = 0;
  std::vector<int> concurrency;  // of the closed loop, a run each
  double rate = 0;               // requests a second of the open loop; 0: closed
  int requests = 0;              // a run; 0: as many as are in flight, or ten seconds of the rate
  std::uint64_t seed = 0;        // of the prompts and of the times of the open loop
  bool json = false;
};

struct UrlRun {
  int concurrency = 0;  // 0: open loop
  double rate = 0;
  int requests = 0;
  int completed = 0;
  std::map<std::string, int> errors;  // by kind
  double seconds = 0;                 // from the first request's beginning to the last answer's end
  std::int64_t prompt_tokens = 0;     // of completed requests, as the server counts; 0 where it does not
  std::int64_t output_tokens = 0;     // likewise, else chunks with text
  std::int64_t chunks = 0;            // with text
  Percentiles time_to_first_token;    // seconds to the first text, of completed requests, and so on
  Percentiles inter_token_latency;    // between chunks with text
  Percentiles request_time;
};

struct UrlReport {
  std::string url;
  std::string model;
  std::string endpoint;
  int input_len = 0;   // as asked for
  int output_len = 0;  // likewise
  std::vector<UrlRun> runs;
};

// What one event of a stream tells.
struct StreamedChunk {
  bool json = false;
  bool text = false;  // of an answer, its reasoning among it
  std::int64_t prompt_tokens = -1, output_tokens = -1;
  std::string error;
};
StreamedChunk read_chunk(std::string_view data);

// The message of an error in OpenAI's shape, and its code; the beginning of the body where it has another.
struct ServerComplaint {
  std::string message;
  std::string code;
};
ServerComplaint read_complaint(std::string_view body);

void print_table(const UrlReport& report, std::FILE* out);
std::string report_json(const UrlReport& report);

Status run_url_bench(const UrlBenchOptions& options, Console& console);

}  // namespace nibble
