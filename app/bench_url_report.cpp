#include "app/bench_report.h"
#include "app/bench_url.h"
#include "base/json_writer.h"
#include "base/quote.h"

namespace nibble {
namespace {

double per_second(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

void print_run(const UrlRun& run, std::FILE* out) {
  const auto ms = [](double seconds) { return seconds * 1e3; };
  char load[32];
  if (run.concurrency > 0) {
    std::snprintf(load, sizeof load, "%d", run.concurrency);
  } else {
    std::snprintf(load, sizeof load, "%.4g/s", run.rate);
  }
  std::fprintf(out, "%11s %8d %7d %10.2f %10.1f %10.1f %8.1f %8.1f %8.1f %8.2f %8.2f %8.2f %8.2f\n", load,
               run.requests, run.requests - run.completed, per_second(run.completed, run.seconds),
               per_second(run.prompt_tokens, run.seconds), per_second(run.output_tokens, run.seconds),
               ms(run.time_to_first_token.p50), ms(run.time_to_first_token.p90),
               ms(run.time_to_first_token.p99), ms(run.inter_token_latency.p50),
               ms(run.inter_token_latency.p90), ms(run.inter_token_latency.p99), run.request_time.p50);
}

}  // namespace

void print_table(const UrlReport& report, std::FILE* out) {
  std::fprintf(out, "server         %s, %s, model %s\n", report.url.c_str(), report.endpoint.c_str(),
               quote(report.model).c_str());
  std::fprintf(out, "requests       random prompts of %d tokens, answers of %d\n\n", report.input_len,
               report.output_len);
  std::fprintf(out, "%11s %8s %7s %10s %10s %10s %26s %26s %8s\n", "", "", "", "requests", "prompt", "answer",
               "first token, ms", "between tokens, ms", "whole, s");
  std::fprintf(out, "%11s %8s %7s %10s %10s %10s %8s %8s %8s %8s %8s %8s %8s\n", "in flight", "requests",
               "failed", "a second", "tokens/s", "tokens/s", "p50", "p90", "p99", "p50", "p90", "p99", "p50");
  for (const UrlRun& run : report.runs) print_run(run, out);
  for (const UrlRun& run : report.runs) {
    for (const auto& [kind, count] : run.errors)
      std::fprintf(out, "\nfailed %d times: %s", count, kind.c_str());
    if (run.chunks > 0 && run.output_tokens > run.chunks * 11 / 10) {
      std::fprintf(
          out, "\nnote: a chunk brought %.1f tokens on average; the times between tokens are between chunks",
          static_cast<double>(run.output_tokens) / static_cast<double>(run.chunks));
    }
    if (!run.errors.empty()) std::fprintf(out, "\n");
  }
}

std::string report_json(const UrlReport& report) {
  std::string text;
  JsonWriter json(text);
  json.begin_object()
      .member("url", std::string_view(report.url))
      .member("model", std::string_view(report.model))
      .member("endpoint", std::string_view(report.endpoint))
      .member("input_len", report.input_len)
      .member("output_len", report.output_len)
      .key("runs")
      .begin_array();
  for (const UrlRun& run : report.runs) {
    json.begin_object();
    run.concurrency > 0 ? json.member("concurrency", run.concurrency) : json.member("rate", run.rate);
    json.member("requests", run.requests)
        .member("completed", run.completed)
        .member("seconds", run.seconds)
        .member("requests_per_s", per_second(run.completed, run.seconds))
        .member("prompt_tokens", run.prompt_tokens)
        .member("output_tokens", run.output_tokens)
        .member("chunks", run.chunks)
        .member("prompt_tokens_per_s", per_second(run.prompt_tokens, run.seconds))
        .member("output_tokens_per_s", per_second(run.output_tokens, run.seconds));
    add_percentiles(json, "ttft_s", run.time_to_first_token);
    add_percentiles(json, "itl_s", run.inter_token_latency);
    add_percentiles(json, "request_s", run.request_time);
    json.key("errors").begin_object();
    for (const auto& [kind, count] : run.errors) json.member(kind, count);
    json.end_object().end_object();
  }
  json.end_array().end_object();
  return text + "\n";
}

}  // namespace nibble
