// What nibble bench found, as a table for people and as JSON.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "app/bench_load.h"
#include "app/peak_rate.h"
#include "base/json_writer.h"

namespace nibble {

struct BenchRow {
  BenchLoad load;
  BenchResult result;
  double bandwidth_share =
      0;                      // of the measured bandwidth, on the weights, keys and values decode had to read
  double multiply_share = 0;  // of the measured rate, on the products with the layers' weights in prefill
};

struct BenchReport {
  ModelInfo model;
  double read_bandwidth = 0;  // bytes a second
  PeakRate peak_rate;
  double load_s = 0;
  double first_token_s = 0;           // from the beginning of loading to the first token of a short prompt
  std::int64_t peak_memory = 0;       // bytes, the mapped model's among them; 0 where the system does not say
  std::int64_t anonymous_memory = 0;  // bytes of it that are no file's
  std::int64_t huge_page_memory = 0;  // bytes of memory, files among it, in huge pages
  int depth = 0;
  int input_len = 0;
  int output_len = 0;
  bool profile = false;
  std::vector<BenchRow> rows;
};

void add_percentiles(JsonWriter& json, std::string_view name, const Percentiles& of);

// Fills a row's shares from its result.
void set_shares(const BenchReport& report, BenchRow& row);

void print_table(const BenchReport& report, std::FILE* out);
std::string report_json(const BenchReport& report);

}  // namespace nibble
