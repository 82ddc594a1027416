#include "server/api/service.h"

#include <algorithm>

#include "base/json_writer.h"
#include "base/quote.h"
#include "server/api/field_reader.h"
#include "server/page/page.h"

namespace nibble::api {
namespace {

using Exchange = std::shared_ptr<http::Exchange>;

constexpr auto overdue = std::chrono::seconds(30);  // a step that takes longer is stuck
constexpr int work_threads = 2;

void answer_error(const Exchange& exchange, const ApiError& error,
                  std::vector<std::pair<std::string, std::string>> fields = {}) {
  exchange->answer({.status = error.status, .fields = std::move(fields), .body = error.json()});
}

ApiError unavailable(std::string message, std::string code) {
  return {.status = 503, .type = "server_error", .message = std::move(message), .code = std::move(code)};
}

ApiError no_such_model(std::string_view served) {
  return {.status = 404,
          .type = "not_found_error",
          .message = "there is no such model; the served one is " + quote(served),
          .param = "model",
          .code = "model_not_found"};
}

// Takes as long for a wrong key as for the right one.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned>(given[i] ^ secret[i % secret.size()]);
  return difference == 0;
}

bool is_json(std::string_view content_type) {
  const std::string_view kind = content_type.substr(0, content_type.find(';'));
  constexpr std::string_view wanted = "application/json";
  const std::size_t end = kind.find_last_not_of(" \t");
  if (end == std::string_view::npos || end + 1 != wanted.size()) return false;
  return std::equal(wanted.begin(), wanted.end(), kind.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); });
}

// The names of fields no one here knows, as a header's value.
std::string ignored_fields(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (!http::is_field("X", name) || text.size() + name.size() > 1024) continue;
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

// What a later version may do: until then it is refused, not passed over.
std::optional<ApiError> not_yet(const GenerationRequest& request) {
  const Sampling& sampling = request.sampling;
  if (sampling.presence_penalty != 0)
    return bad_field("presence_penalty", " is not served yet; leave it at 0");
  if (sampling.frequency_penalty != 0)
    return bad_field("frequency_penalty", " is not served yet; leave it at 0");
  if (sampling.repetition_penalty != 1)
    return bad_field("repetition_penalty", " is not served yet; leave it at 1");
  if (!sampling.logit_bias.empty()) return bad_field("logit_bias", " is not served yet; leave it out");
  if (sampling.min_tokens > 0) return bad_field("min_tokens", " is not served yet; leave it at 0");
  if (request.echo) return bad_field("echo", " is not served yet; leave it out");
  return {};
}

}  // namespace

struct Service::Route {
  std::string_view method;
  std::string_view path;
  void (*serve)(Service& service, Exchange exchange);
  bool open;  // without a key and before the model is there
};

const Service::Route Service::routes[] = {
    {"GET", "/health", [](Service& s, Exchange e) { s.health(std::move(e)); }, true},
    {"GET", "/version", [](Service& s, Exchange e) { s.version(std::move(e)); }, true},
    {"GET", "/live", [](Service& s, Exchange e) { s.live(std::move(e)); }, false},
    {"GET", "/v1/models", [](Service& s, Exchange e) { s.models(std::move(e)); }, false},
    {"POST", "/v1/chat/completions", [](Service& s, Exchange e) { s.generate(std::move(e), Endpoint::chat); },
     false},
    {"POST", "/v1/completions",
     [](Service& s, Exchange e) { s.generate(std::move(e), Endpoint::completions); }, false},
    {"POST", "/tokenize", [](Service& s, Exchange e) { s.tokenize(std::move(e)); }, false},
    {"POST", "/detokenize", [](Service& s, Exchange e) { s.detokenize(std::move(e)); }, false},
};

Service::Service(http::SocketServer& server, ServiceOptions options, const Clock& clock)
    : server_(server),
      options_(std::move(options)),
      clock_(clock),
      work_(std::make_unique<WorkQueue>(work_threads)) {}

Service::~Service() {
  work_.reset();
  engine_.reset();
}

http::Handler Service::handler() {
  return {.request = [this](Exchange exchange) { handle(std::move(exchange)); },
          .refusal = [](const http::Refusal& refusal) -> http::Response {
            const ApiError error{.status = refusal.status, .message = refusal.message};
            return {.status = refusal.status, .body = error.json()};
          }};
}

void Service::begin(std::unique_ptr<Engine> engine, ServedText text) {
  text_ = std::move(text);
  engine_ = std::make_unique<EngineThread>(
      std::move(engine), options_.most_waiting, [this](std::vector<DeliveredEvent> events) {
        server_.post([this, events = std::make_shared<std::vector<DeliveredEvent>>(std::move(events))] {
          take(std::move(*events));
        });
      });
}

void Service::handle(Exchange exchange) {
  const http::HttpRequest& request = exchange->request();
  std::string allowed;
  const std::string_view method =
      request.head.method == "HEAD" ? "GET" : std::string_view(request.head.method);
  if (auto file = page::file_answer(request.head.path, request.head.field("if-none-match").value_or(""))) {
    if (method == "GET") return exchange->answer(*std::move(file));
    allowed = "GET, HEAD";
  }
  for (const Route& route : routes) {
    const bool one_model = route.path == "/v1/models" && request.head.path.starts_with("/v1/models/");
    if (route.path != request.head.path && !one_model) continue;
    if (route.method != method) {
      allowed = route.method == "GET" ? "GET, HEAD" : std::string(route.method);
      continue;
    }
    if (!route.open) {
      if (const std::optional<ApiError> error = refused(request)) return answer_error(exchange, *error);
    }
    return route.serve(*this, std::move(exchange));
  }
  if (allowed.empty())
    return answer_error(exchange,
                        {.status = 404, .type = "not_found_error", .message = "there is no such path"});
  answer_error(exchange, {.status = 405, .message = "this path takes " + allowed}, {{"Allow", allowed}});
}

std::optional<ApiError> Service::refused(const http::HttpRequest& request) const {
  if (!options_.api_key.empty()) {
    constexpr std::string_view scheme = "Bearer ";
    const std::string_view given = request.head.field("authorization").value_or("");
    if (!given.starts_with(scheme) || !same_secret(given.substr(scheme.size()), options_.api_key)) {
      return ApiError{.status = 401,
                      .type = "authentication_error",
                      .message = "give the API key as Authorization: Bearer KEY",
                      .code = "invalid_api_key"};
    }
  }
  if (!engine_) return unavailable("the model is loading", "loading");
  if (engine_->failed()) return unavailable("the engine has stopped", "engine_stopped");
  if (request.head.method != "POST") return {};
  if (draining_) return unavailable("the server is going down", "draining");
  if (request.head.count("content-encoding") > 0 && request.head.field("content-encoding") != "identity") {
    return ApiError{.status = 415, .message = "a compressed body is not served"};
  }
  if (!is_json(request.head.field("content-type").value_or(""))) {
    return ApiError{.status = 415, .message = "the body must be JSON, with Content-Type: application/json"};
  }
  return {};
}

void Service::health(Exchange exchange) {
  const auto say = [&](int status, std::string_view state) {
    exchange->answer({.status = status, .body = "{\"status\":\"" + std::string(state) + "\"}"});
  };
  if (!engine_) return say(503, "loading");
  if (engine_->failed()) return say(503, "failed");
  if (draining_) return say(503, "draining");
  if (std::chrono::steady_clock::now() - engine_->heartbeat() > overdue) return say(503, "stuck");
  say(200, "ok");
}

void Service::version(Exchange exchange) {
  std::string body;
  JsonWriter(body).begin_object().member("version", std::string_view(options_.version)).end_object();
  exchange->answer({.body = std::move(body)});
}

// What the page draws, once a second.
void Service::live(Exchange exchange) {
  const EngineCounts counts = engine_->counts();
  std::string body;
  JsonWriter(body)
      .begin_object()
      .member("running", counts.load.running)
      .member("queued", counts.load.queued)
      .member("pages", counts.load.pages)
      .member("pages_used", counts.load.pages_used)
      .member("steps", counts.steps)
      .member("prompt_tokens", counts.prompt_tokens)
      .member("generated_tokens", counts.generated_tokens)
      .end_object();
  exchange->answer({.body = std::move(body)});
}

void Service::models(Exchange exchange) {
  const std::string& path = exchange->request().head.path;
  constexpr std::string_view all = "/v1/models";
  const bool one = path.size() > all.size();
  if (one && path.substr(all.size() + 1) != options_.served_name) {
    return answer_error(exchange, no_such_model(options_.served_name));
  }
  std::string body;
  JsonWriter json(body);
  if (!one) json.begin_object().member("object", "list").key("data").begin_array();
  json.begin_object()
      .member("id", std::string_view(options_.served_name))
      .member("object", "model")
      .member("created", 0)
      .member("owned_by", "nibble")
      .member("max_model_len", engine_->model().max_model_len)
      .end_object();
  if (!one) json.end_array().end_object();
  exchange->answer({.body = std::move(body)});
}

std::variant<PreparedRequest, ApiError> Service::prepare(Endpoint endpoint, std::string body) const {
  auto parsed = parse_generation_request(endpoint, std::move(body), engine_->model().vocabulary);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  PreparedRequest prepared{
      .request = std::get<GenerationRequest>(std::move(parsed)), .prompts = {}, .stop = {}};
  GenerationRequest& request = prepared.request;
  if (!request.model.empty() && request.model != options_.served_name) {
    return no_such_model(options_.served_name);
  }
  if (auto error = not_yet(request)) return std::move(*error);
  if (endpoint == Endpoint::chat) {
    if (!text_->chat) return bad_field("messages", ": this model has no chat template; use /v1/completions");
    ChatRequest chat;
    chat.messages = std::move(request.messages);
    chat.reasoning_effort = request.reasoning_effort;
    chat.template_variables = request.chat_template_kwargs;
    Result<ChatPrompt> rendered = text_->chat->render(chat);
    if (!rendered.ok()) return bad_field("messages", ": " + rendered.status().message());
    prepared.prompts.push_back({.ids = std::move(rendered->ids), .format = rendered->format});
  }
  for (const Prompt& prompt : request.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    prepared.prompts.push_back(
        {.ids = text ? text_->tokenizer.encode(*text) : std::get<std::vector<TokenId>>(prompt)});
  }
  const int context = engine_->model().max_model_len;
  for (const PreparedPrompt& prompt : prepared.prompts) {
    const int tokens = static_cast<int>(prompt.ids.size());
    if (tokens == 0) return bad_field(endpoint == Endpoint::chat ? "messages" : "prompt", " has no tokens");
    if (tokens >= context) {
      return ApiError{.message = "the prompt has " + std::to_string(tokens) +
                                 " tokens and the context holds " + std::to_string(context) + "; shorten it",
                      .param = endpoint == Endpoint::chat ? "messages" : "prompt",
                      .code = "context_length_exceeded"};
    }
  }
  for (std::size_t i = 0; i < prepared.prompts.size() * static_cast<std::size_t>(request.n); ++i) {
    Result<StopStrings> stop = StopStrings::make(request.sampling.stop);
    if (!stop.ok()) return bad_field("stop", ": " + stop.status().message());
    prepared.stop.push_back(std::move(*stop));
  }
  return prepared;
}

void Service::generate(Exchange exchange, Endpoint endpoint) {
  // A request is never written again, so the work thread may read it; answering is the I/O thread's.
  work_->add([this, exchange = std::move(exchange), endpoint]() mutable {
    auto prepared = std::make_shared<std::variant<PreparedRequest, ApiError>>(
        prepare(endpoint, exchange->request().body));
    server_.post([this, exchange = std::move(exchange), prepared] {
      if (const auto* error = std::get_if<ApiError>(prepared.get())) return answer_error(exchange, *error);
      start(exchange, std::get<PreparedRequest>(std::move(*prepared)));
    });
  });
}

void Service::start(Exchange exchange, PreparedRequest prepared) {
  const bool chat = prepared.request.endpoint == Endpoint::chat;
  const bool stream = prepared.request.stream;
  const std::string ignored = ignored_fields(prepared.request.ignored);
  AnswerHead head{
      .endpoint = prepared.request.endpoint,
      .id = (chat ? "chatcmpl-" : "cmpl-") + std::to_string(++answers_),
      .created =
          std::chrono::duration_cast<std::chrono::seconds>(clock_.wall_time().time_since_epoch()).count(),
      .model = options_.served_name};
  const auto generation =
      std::make_shared<Generation>(exchange, std::move(prepared), std::move(head), text_->tokenizer);
  const RequestId first = next_id_;
  const int choices = generation->choices();
  next_id_ += static_cast<RequestId>(choices);
  if (const Status status =
          engine_->submit(generation->engine_requests(first, options_.seed, engine_->model()));
      !status.ok()) {
    if (status.code() == StatusCode::resource_exhausted) {
      return answer_error(
          exchange,
          {.status = 429, .type = "rate_limit_error", .message = status.message(), .code = "queue_full"},
          {{"Retry-After", "1"}});
    }
    return answer_error(exchange, status.code() == StatusCode::invalid_argument
                                      ? bad_request(status.message())
                                      : unavailable(status.message(), "engine_stopped"));
  }
  for (int i = 0; i < choices; ++i) running_[first + static_cast<RequestId>(i)] = {generation, i};
  exchange->on_gone([this, first, choices] { forget(first, choices); });
  if (!stream) return;
  http::Response response{.content_type = "text/event-stream",
                          .fields = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
  if (!ignored.empty()) response.fields.emplace_back("X-Nibble-Ignored", ignored);
  exchange->begin_stream(std::move(response));
}

void Service::forget(RequestId first, int choices) {
  for (int i = 0; i < choices; ++i) {
    const RequestId id = first + static_cast<RequestId>(i);
    if (running_.erase(id) > 0) engine_->cancel(id);
  }
}

void Service::take(std::vector<DeliveredEvent> events) {
  for (const DeliveredEvent& event : events) {
    const auto found = running_.find(event.request);
    if (found == running_.end()) continue;
    const Running running = found->second;
    const Generation::After after = running.generation->take(running.choice, event);
    if (after == Generation::After::cancel) engine_->cancel(event.request);
    if (after == Generation::After::cancel || event.finish != FinishReason::none)
      running_.erase(event.request);
  }
}

void Service::tokenize(Exchange exchange) {
  work_->add([this, exchange = std::move(exchange)]() mutable {
    std::string body;
    int status = 200;
    const Result<JsonDocument> document = JsonDocument::parse(exchange->request().body);
    const auto prompt = document.ok() ? document->root().find("prompt") : std::nullopt;
    if (!document.ok()) {
      body = bad_request(document.status().message(), "invalid_json").json();
      status = 400;
    } else if (!prompt || !prompt->is_string()) {
      body = bad_field("prompt", " must be a string").json();
      status = 400;
    } else {
      const std::vector<TokenId> ids = text_->tokenizer.encode(prompt->as_string());
      JsonWriter json(body);
      json.begin_object().member("count", ids.size()).key("tokens").begin_array();
      for (const TokenId id : ids) json.value(id);
      json.end_array().member("max_model_len", engine_->model().max_model_len).end_object();
    }
    server_.post([exchange = std::move(exchange), status, body] {
      exchange->answer({.status = status, .body = body});
    });
  });
}

void Service::detokenize(Exchange exchange) {
  work_->add([this, exchange = std::move(exchange)]() mutable {
    const Result<JsonDocument> document = JsonDocument::parse(exchange->request().body);
    std::vector<TokenId> ids;
    Refused refused;
    const auto tokens = document.ok() ? document->root().find("tokens") : std::nullopt;
    if (!document.ok()) {
      refused = bad_request(document.status().message(), "invalid_json");
    } else if (!tokens || !tokens->is_array()) {
      refused = bad_field("tokens", " must be an array of token ids");
    } else {
      for (const JsonValue value : tokens->elements()) {
        TokenId id = 0;
        refused = read_integer("tokens[" + std::to_string(ids.size()) + "]", value, 0,
                               text_->tokenizer.vocabulary_size() - 1, id);
        if (refused) break;
        ids.push_back(id);
      }
    }
    std::string body;
    if (refused) {
      body = refused->json();
    } else {
      JsonWriter(body)
          .begin_object()
          .member("prompt", std::string_view(text_->tokenizer.decode(ids)))
          .end_object();
    }
    server_.post([exchange = std::move(exchange), status = refused ? 400 : 200, body] {
      exchange->answer({.status = status, .body = body});
    });
  });
}

}  // namespace nibble::api
