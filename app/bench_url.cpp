#include "app/bench_url.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "app/http_client.h"
#include "app/interrupt.h"
#include "app/progress.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "net/http_answer.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Each is one token in nearly every vocabulary, so a number of words is about a number of tokens.
constexpr std::array<std::string_view, 48> kWords = {
    "the",  "and",  "was",   "one",   "day",  "had",  "said", "her",   "his",  "big",   "little", "they",
    "went", "with", "saw",   "that",  "not",  "but",  "very", "happy", "play", "find",  "help",   "good",
    "home", "tree", "water", "house", "time", "made", "look", "came",  "then", "found", "friend", "story",
    "old",  "new",  "all",   "some",  "over", "back", "down", "from",  "what", "when",  "who",    "more"};

// The words of prompt number `index`.
std::string random_words(std::uint64_t seed, int index, int words) {
  std::mt19937_64 random(seed * 1'000'003 + static_cast<std::uint64_t>(index));
  std::string text;
  for (int i = 0; i < words; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random() % kWords.size()];
  }
  return text;
}

std::int64_t counted(const JsonValue& usage, std::string_view name) {
  const auto found = usage.find(name);
  return found && found->is_integer() ? found->as_integer() : -1;
}

bool has_text(const JsonValue& holder, std::string_view name) {
  const auto found = holder.find(name);
  return found && found->is_string() && !found->as_string().empty();
}

// A whole answer to one request.
struct Reply {
  int status = 0;
  Status outcome;
  std::string body;
};

Reply ask(HttpClient& client, HttpRequestText request) {
  Reply reply;
  client.send(std::move(request), {.body =
                                       [&](int, std::string_view part) {
                                         if (reply.body.size() < (1 << 20)) reply.body += part;
                                       },
                                   .done =
                                       [&](int status, const Status& outcome) {
                                         reply.status = status;
                                         reply.outcome = outcome;
                                       }});
  client.run();
  return reply;
}

// What of a refused request a user can mend is the command line's.
Status refusal(const Reply& reply, const UrlBenchOptions& options) {
  if (!reply.outcome.ok()) return reply.outcome.with_context("--url " + options.url);
  const ServerComplaint complaint = read_complaint(reply.body);
  const std::string said = "the server answered " + std::to_string(reply.status) + ": " + complaint.message;
  if (reply.status == 401 || reply.status == 403)
    return invalid_argument(said +
                            (options.api_key.empty() ? "; give --api-key KEY" : "; give another --api-key"));
  if (reply.status >= 400 && reply.status < 500 && reply.status != 429) return invalid_argument(said);
  return io_error(said);
}

// The first model that the server names, if the user named none.
Result<std::string> find_model(HttpClient& client, const UrlBenchOptions& options) {
  if (!options.model.empty()) return options.model;
  const Reply reply = ask(client, {.path = "/v1/models"});
  if (!reply.outcome.ok() || reply.status != 200) return refusal(reply, options);
  const Result<JsonDocument> document = JsonDocument::parse(reply.body);
  const auto data = document.ok() ? document->root().find("data") : std::nullopt;
  if (data && data->is_array()) {
    for (const JsonValue model : data->elements()) {
      const auto id = model.find("id");
      if (id && id->is_string()) return std::string(id->as_string());
    }
  }
  return io_error("--url " + options.url + " does not list its models as OpenAI's API does: " +
                  quote(reply.body, 60) + "; name a server of that API, or the MODEL");
}

class Load {
 public:
  Load(HttpClient& client, const UrlBenchOptions& options, std::string model)
      : client_(client), options_(options), model_(std::move(model)), words_(options.input_len) {}

  // Learns how many words make a prompt of the wanted length, and that the server serves at all.
  Status prepare() {
    const int few = 1;
    NIBBLE_ASSIGN(const std::int64_t many_tokens, probe(words_));
    if (many_tokens <= 0 || words_ <= few) return {};
    NIBBLE_ASSIGN(const std::int64_t few_tokens, probe(few));
    const double each = static_cast<double>(many_tokens - few_tokens) / (words_ - few);
    if (each <= 0) return {};
    words_ = std::max(1, few + static_cast<int>(std::lround((options_.input_len - few_tokens) / each)));
    return {};
  }

  Result<UrlRun> run(int concurrency, const std::function<void(int, int)>& progress,
                     const std::function<bool()>& stopped) {
    run_ = {.concurrency = concurrency, .rate = concurrency > 0 ? 0 : options_.rate};
    const int by_default = concurrency > 0 ? concurrency : static_cast<int>(std::ceil(options_.rate * 10));
    run_.requests = options_.requests > 0 ? options_.requests : by_default;
    first_token_.clear();
    between_.clear();
    whole_.clear();
    begun_ = ended_ = 0;
    interrupted_ = false;
    progress_ = progress;
    stopped_ = stopped;
    begin_ = last_ = Clock::now();
    if (concurrency > 0) {
      for (int i = 0; i < std::min(concurrency, run_.requests); ++i) begin_next(begin_);
    } else {
      intervals_.seed(options_.seed);
      arrive(begin_);
    }
    watch();
    client_.run();
    if (interrupted_) return Status(StatusCode::cancelled, "interrupted; the run was not measured");
    run_.seconds = seconds_between(begin_, last_);
    run_.time_to_first_token = percentiles(std::move(first_token_));
    run_.inter_token_latency = percentiles(std::move(between_));
    run_.request_time = percentiles(std::move(whole_));
    return run_;
  }

 private:
  struct InFlight {
    Clock::time_point begun, last;
    std::vector<double> between;
    double first_token = -1;
    int chunks = 0;
    std::int64_t prompt_tokens = 0, output_tokens = -1;
    EventReader events;
    std::string body;  // of an answer that is no stream
    std::string error;
    bool done = false;  // [DONE] has come
  };

  HttpRequestText request(int index, int words, int output, bool stream) const {
    HttpRequestText text{.method = "POST",
                         .path = options_.chat ? "/v1/chat/completions" : "/v1/completions"};
    JsonWriter json(text.body);
    json.begin_object().member("model", std::string_view(model_));
    const std::string prompt = random_words(options_.seed, index, words);
    if (options_.chat) {
      json.key("messages").begin_array().begin_object();
      json.member("role", "user").member("content", std::string_view(prompt)).end_object().end_array();
    } else {
      json.member("prompt", std::string_view(prompt));
    }
    json.member("max_tokens", output)
        .member("temperature", 0)
        .member("ignore_eos", true)
        .member("stream", stream);
    if (stream) json.key("stream_options").begin_object().member("include_usage", true).end_object();
    json.end_object();
    return text;
  }

  // The server's count of a prompt's tokens; 0 where it gives none.
  Result<std::int64_t> probe(int words) {
    const Reply reply = ask(client_, request(-1, words, 1, false));
    if (!reply.outcome.ok() || reply.status != 200) return refusal(reply, options_);
    const Result<JsonDocument> document = JsonDocument::parse(reply.body);
    if (!document.ok() || !document->root().is_object())
      return io_error("--url " + options_.url + " answered what is no JSON: " + quote(reply.body, 60));
    const auto usage = document->root().find("usage");
    return usage ? std::max<std::int64_t>(0, counted(*usage, "prompt_tokens")) : 0;
  }

  // A request of the open loop begins, and the time of the next is drawn.
  void arrive(Clock::time_point now) {
    begin_next(now);
    if (begun_ == run_.requests) return;
    const double wait = std::exponential_distribution<double>(options_.rate)(intervals_);
    const auto next = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait));
    client_.at(next, [this, next] { arrive(next); });
  }

  void begin_next(Clock::time_point now) {
    const int index = begun_++;
    const auto flight = std::make_shared<InFlight>();
    flight->begun = flight->last = now;
    client_.send(
        request(index, words_, options_.output_len, true),
        {.body = [this, flight](int status, std::string_view bytes) { take(*flight, status, bytes); },
         .done = [this, flight](int status, const Status& outcome) { end(*flight, status, outcome); }});
  }

  void take(InFlight& flight, int status, std::string_view bytes) {
    if (status != 200) {
      if (flight.body.size() < (64 << 10)) flight.body += bytes;
      return;
    }
    const Clock::time_point now = Clock::now();
    const Status read =
        flight.events.take(bytes, [&](std::string_view data) { take_event(flight, data, now); });
    if (!read.ok()) flight.error = read.message();
  }

  void take_event(InFlight& flight, std::string_view data, Clock::time_point now) {
    if (data == "[DONE]") {
      flight.done = true;
      return;
    }
    const StreamedChunk chunk = read_chunk(data);
    if (!chunk.json) flight.error = "an event of the stream was no JSON";
    if (!chunk.error.empty()) flight.error = "an error in the stream: " + chunk.error;
    if (chunk.prompt_tokens >= 0) flight.prompt_tokens = chunk.prompt_tokens;
    if (chunk.output_tokens >= 0) flight.output_tokens = chunk.output_tokens;
    if (!chunk.text) return;
    if (flight.chunks++ == 0) {
      flight.first_token = seconds_between(flight.begun, now);
    } else {
      flight.between.push_back(seconds_between(flight.last, now));
    }
    flight.last = now;
  }

  void end(InFlight& flight, int status, const Status& outcome) {
    last_ = Clock::now();
    ++ended_;
    const std::string error = error_of(flight, status, outcome);
    if (error.empty()) {
      count(flight);
    } else {
      ++run_.errors[error];
    }
    progress_(ended_, run_.requests);
    if (ended_ == run_.requests) return client_.stop();
    if (run_.concurrency > 0 && begun_ < run_.requests && !interrupted_) begin_next(last_);
  }

  static std::string error_of(const InFlight& flight, int status, const Status& outcome) {
    if (!outcome.ok()) return outcome.message();
    if (status != 200) {
      const ServerComplaint complaint = read_complaint(flight.body);
      return "status " + std::to_string(status) + (complaint.code.empty() ? "" : " " + complaint.code);
    }
    if (!flight.error.empty()) return flight.error;
    if (!flight.done) return "the stream ended without its [DONE]";
    // An answer may be all marks, which are counted and not shown.
    if (flight.chunks == 0 && flight.output_tokens <= 0) return "the stream brought no text";
    return "";
  }

  void count(const InFlight& flight) {
    ++run_.completed;
    run_.prompt_tokens += flight.prompt_tokens;
    run_.output_tokens += flight.output_tokens >= 0 ? flight.output_tokens : flight.chunks;
    run_.chunks += flight.chunks;
    if (flight.chunks > 0) first_token_.push_back(flight.first_token);
    between_.insert(between_.end(), flight.between.begin(), flight.between.end());
    whole_.push_back(seconds_between(flight.begun, last_));
  }

  // A signal wakes nobody, so it is asked about.
  void watch() {
    interrupted_ = stopped_();
    if (interrupted_) return client_.stop();
    client_.at(Clock::now() + std::chrono::milliseconds(100), [this] { watch(); });
  }

  HttpClient& client_;
  const UrlBenchOptions& options_;
  std::string model_;
  int words_;
  UrlRun run_;
  std::vector<double> first_token_, between_, whole_;
  std::mt19937_64 intervals_;
  std::function<void(int, int)> progress_;
  std::function<bool()> stopped_;
  Clock::time_point begin_, last_;
  int begun_ = 0;
  int ended_ = 0;
  bool interrupted_ = false;
};

// A connection takes a descriptor, and the usual limit is 1,024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // where it fails, connections do, and say so
}

Status run_all(Load& load, const UrlBenchOptions& options, UrlReport& report) {
  const InterruptGuard guard;
  std::vector<int> levels = options.concurrency;
  if (options.rate > 0) levels = {0};
  for (const int level : levels) {
    ProgressBar bar(level > 0 ? "in flight: " + std::to_string(level) : "open loop");
    NIBBLE_ASSIGN(UrlRun run, load.run(
                                  level, [&](int done, int total) { bar.update(done, total); },
                                  [&] { return guard.interrupted(); }));
    report.runs.push_back(std::move(run));
  }
  return {};
}

}  // namespace

StreamedChunk read_chunk(std::string_view data) {
  StreamedChunk chunk;
  const Result<JsonDocument> document = JsonDocument::parse(std::string(data));
  if (!document.ok() || !document->root().is_object()) return chunk;
  chunk.json = true;
  const JsonValue root = document->root();
  if (const auto error = root.find("error"); error && !error->is_null()) {
    const auto message = error->find("message");
    chunk.error = quote(message && message->is_string() ? message->as_string() : data, 80);
  }
  if (const auto usage = root.find("usage"); usage && usage->is_object()) {
    chunk.prompt_tokens = counted(*usage, "prompt_tokens");
    chunk.output_tokens = counted(*usage, "completion_tokens");
  }
  const auto choices = root.find("choices");
  if (!choices || !choices->is_array()) return chunk;
  for (const JsonValue choice : choices->elements()) {
    const auto delta = choice.find("delta");
    chunk.text |= has_text(choice, "text");
    if (delta) {
      chunk.text |= has_text(*delta, "content") || has_text(*delta, "reasoning_content") ||
                    has_text(*delta, "reasoning");
    }
  }
  return chunk;
}

ServerComplaint read_complaint(std::string_view body) {
  ServerComplaint complaint{.message = quote(body, 80)};
  const Result<JsonDocument> document = JsonDocument::parse(std::string(body));
  const auto error = document.ok() ? document->root().find("error") : std::nullopt;
  if (!error) return complaint;
  if (const auto message = error->find("message"); message && message->is_string())
    complaint.message = escape(message->as_string());
  if (const auto code = error->find("code"); code && code->is_string())
    complaint.code = escape(code->as_string());
  return complaint;
}

Status run_url_bench(const UrlBenchOptions& options, Console& console) {
  raise_descriptor_limit();
  Result<HttpTarget> target = read_url(options.url);
  if (!target.ok()) return target.status().with_context("--url " + quote(options.url));
  target->api_key = options.api_key;
  Result<std::unique_ptr<HttpClient>> made = HttpClient::make(*std::move(target));
  if (!made.ok()) return made.status().with_context("--url");
  const std::unique_ptr<HttpClient> client = std::move(made).value();
  exit_on_interrupt();
  UrlReport report{.url = options.url,
                   .model = {},
                   .endpoint = options.chat ? "/v1/chat/completions" : "/v1/completions",
                   .input_len = options.input_len,
                   .output_len = options.output_len,
                   .runs = {}};
  NIBBLE_ASSIGN(report.model, find_model(*client, options));
  Load load(*client, options, report.model);
  NIBBLE_RETURN_IF_ERROR(load.prepare());
  NIBBLE_RETURN_IF_ERROR(run_all(load, options, report));
  if (options.json) {
    const std::string text = report_json(report);
    std::fwrite(text.data(), 1, text.size(), console.out);
  } else {
    print_table(report, console.out);
  }
  for (const UrlRun& run : report.runs) {
    if (run.completed == 0)
      return io_error("no request was answered: " + run.errors.begin()->first +
                      "; the server's log may say more");
  }
  return {};
}

}  // namespace nibble
