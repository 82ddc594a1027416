#include "app/bench_report.h"

#include <algorithm>

#include "base/json_writer.h"
#include "base/quote.h"
#include "plan/bound.h"

namespace nibble {
namespace {

double gigabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

void print_row(const BenchRow& row, std::FILE* out) {
  const auto ms = [](double seconds) { return seconds * 1e3; };
  const BenchResult& result = row.result;
  std::fprintf(
      out, "%11d %8d %9.1f %5.0f %% %4d/%-4d %9.2f %5.0f %% %4d/%-4d %7.0f %7.0f %7.0f %7.1f %7.1f %7.1f\n",
      row.load.concurrency, row.load.requests, result.prefill.tokens_per_s, row.multiply_share * 100,
      result.prefill.clean_steps, result.prefill.steps, result.decode.tokens_per_s, row.bandwidth_share * 100,
      result.decode.clean_steps, result.decode.steps, ms(result.time_to_first_token.p50),
      ms(result.time_to_first_token.p90), ms(result.time_to_first_token.p99),
      ms(result.inter_token_latency.p50), ms(result.inter_token_latency.p90),
      ms(result.inter_token_latency.p99));
}

void print_times(const char* kind, int concurrency, const StepSummary& steps, std::FILE* out) {
  double sum = 0;
  for (const TimeTable::Row& row : steps.times.rows()) sum += row.seconds;
  if (sum <= 0) return;
  std::fprintf(out, "\n%s at concurrency %d, %d steps: ms a step, and its share\n", kind, concurrency,
               steps.steps);
  for (const TimeTable::Row& row : steps.times.rows()) {
    std::fprintf(out, "  %-17s %9.3f %5.1f %%\n", std::string(row.name).c_str(),
                 row.seconds * 1e3 / steps.steps, row.seconds / sum * 100);
  }
}

void add_times(JsonWriter& json, std::string_view name, const StepSummary& steps) {
  json.key(name).begin_array();
  for (const TimeTable::Row& row : steps.times.rows()) {
    json.begin_object()
        .member("op", row.name)
        .member("seconds", row.seconds)
        .member("calls", row.calls)
        .end_object();
  }
  json.end_array();
}

void add_run(JsonWriter& json, const BenchRow& row, bool profile) {
  const StepSummary &prefill = row.result.prefill, &decode = row.result.decode;
  json.begin_object().member("concurrency", row.load.concurrency).member("requests", row.load.requests);
  json.member("seconds", row.result.seconds)
      .member("prefill_tokens_per_s", prefill.tokens_per_s)
      .member("multiply_share", row.multiply_share)
      .member("prefill_steps", prefill.steps)
      .member("clean_prefill_steps", prefill.clean_steps);
  json.member("decode_tokens_per_s", decode.tokens_per_s)
      .member("bandwidth_share", row.bandwidth_share)
      .member("tokens_a_decode_step", decode.step_tokens)
      .member("decode_steps", decode.steps)
      .member("clean_decode_steps", decode.clean_steps);
  add_percentiles(json, "ttft_s", row.result.time_to_first_token);
  add_percentiles(json, "itl_s", row.result.inter_token_latency);
  if (profile) {
    add_times(json, "prefill_profile", prefill);
    add_times(json, "decode_profile", decode);
  }
  json.end_object();
}

}  // namespace

void add_percentiles(JsonWriter& json, std::string_view name, const Percentiles& of) {
  json.key(name)
      .begin_object()
      .member("p50", of.p50)
      .member("p90", of.p90)
      .member("p99", of.p99)
      .end_object();
}

void set_shares(const BenchReport& report, BenchRow& row) {
  const StepSummary& decode = row.result.decode;
  if (decode.step_s > 0 && report.read_bandwidth > 0) {
    const int context = row.load.depth + row.load.input_len + row.load.output_len / 2;
    const double bytes = decode_cost(report.model.plan, decode.step_tokens, context).bytes;
    row.bandwidth_share = bytes / decode.step_s / report.read_bandwidth;
  }
  if (report.peak_rate.flops > 0) {
    row.multiply_share =
        row.result.prefill.tokens_per_s * report.model.plan.bound.flops_per_token / report.peak_rate.flops;
  }
}

void print_table(const BenchReport& report, std::FILE* out) {
  std::fprintf(out, "model          %s, %.2f GB of weights, %.1f MB of them a token\n",
               quote(report.model.name).c_str(), gigabytes(report.model.weight_bytes),
               report.model.plan.bound.bytes_per_token / 1e6);
  const bool gpu = report.model.plan.device == DeviceKind::cuda;
  const std::string machine =
      gpu ? report.model.plan.machine.gpu.model : std::to_string(report.model.threads) + " threads";
  std::fprintf(out, "machine        %s, reading %.1f GB/s, multiplying %.0f %s by %s (%s)\n", machine.c_str(),
               report.read_bandwidth / 1e9, report.peak_rate.flops / 1e9,
               report.model.plan.int8_products ? "GOP/s" : "GFLOP/s",
               std::string(report.peak_rate.instruction).c_str(),
               gpu ? "known of such a GPU" : "measured now");
  std::fprintf(out, "loaded in      %.2f s, first token after %.2f s\n", report.load_s, report.first_token_s);
  std::fprintf(out, "memory         %.2f GB at most, %.2f GB beside files, %.2f GB in huge pages\n",
               gigabytes(report.peak_memory), gigabytes(report.anonymous_memory),
               gigabytes(report.huge_page_memory));
  std::fprintf(out, "%s", startup_text(report.model.plan).c_str());
  const Choice& loaded = report.model.loaded;
  std::fprintf(out, "%-23s %s (%s)\n", loaded.field.c_str(), loaded.value.c_str(), loaded.why.c_str());
  std::fprintf(out, "requests       random prompts of %d tokens%s, answers of %d\n\n", report.input_len,
               report.depth > 0 ? (" after " + std::to_string(report.depth) + " others").c_str() : "",
               report.output_len);
  std::fprintf(out, "%11s %8s %9s %7s %9s %9s %7s %9s %23s %23s\n", "", "", "prefill", "of", "clean",
               "decode", "of", "clean", "first token, ms", "between tokens, ms");
  std::fprintf(out, "%11s %8s %9s %7s %9s %9s %7s %9s %7s %7s %7s %7s %7s %7s\n", "concurrency", "requests",
               "tokens/s", "peak", "steps", "tokens/s", "memory", "steps", "p50", "p90", "p99", "p50", "p90",
               "p99");
  for (const BenchRow& row : report.rows) print_row(row, out);
  for (const BenchRow& row : report.rows) {
    if (!report.profile) continue;
    print_times("prefill", row.load.concurrency, row.result.prefill, out);
    print_times("decode", row.load.concurrency, row.result.decode, out);
  }
}

std::string report_json(const BenchReport& report) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("model", report.model.name).member("threads", report.model.threads);
  json.member("weight_bytes", report.model.weight_bytes)
      .member("bytes_per_token", report.model.plan.bound.bytes_per_token)
      .member("multiplies_per_token", static_cast<std::int64_t>(report.model.plan.bound.flops_per_token / 2));
  json.member("read_bandwidth", report.read_bandwidth)
      .member("peak_flops", report.peak_rate.flops)
      .member("peak_instruction", report.peak_rate.instruction)
      .member("load_s", report.load_s)
      .member("first_token_s", report.first_token_s)
      .member("peak_memory", report.peak_memory)
      .member("anonymous_memory", report.anonymous_memory)
      .member("huge_page_memory", report.huge_page_memory);
  std::vector<Choice> choices = report.model.plan.choices;
  choices.push_back(report.model.loaded);
  write_choices(choices, json.key("choices"));
  json.member("depth", report.depth)
      .member("input_len", report.input_len)
      .member("output_len", report.output_len)
      .key("runs")
      .begin_array();
  for (const BenchRow& row : report.rows) add_run(json, row, report.profile);
  json.end_array().end_object();
  return text + "\n";
}

}  // namespace nibble
