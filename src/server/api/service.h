// The routes: what each path answers. Generations run in the engine, everything that takes time on the work
// queue, and all state lives on the I/O thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "engine/engine_thread.h"
#include "server/api/generation.h"
#include "server/api/prepare.h"
#include "server/api/request_memory.h"
#include "server/api/response_encoder.h"
#include "server/api/response_store.h"
#include "server/api/tagged_exchange.h"
#include "server/http/socket_server.h"
#include "server/metrics.h"
#include "server/work_queue.h"

namespace nibble::api {

struct ServiceOptions {
  std::string served_name;  // of the model
  std::string version;      // of the program
  int most_waiting = 256;   // generations in the queue; and requests that wait to be read, at least 64
  std::uint64_t seed = 0;   // of requests that name none
  std::chrono::seconds request_time{
      0};  // for an answer, from when its prompt is ready; 0: as long as it takes
  std::size_t request_bytes = std::size_t{384} << 20;  // that all requests may hold (request_memory.h)
};

// How an engine that serves is watched.
struct EngineWatch {
  std::chrono::nanoseconds step_limit{
      0};  // after which /health calls it stuck; 0: a step takes what it takes
  std::chrono::nanoseconds test_idle_every{0};  // as EngineThread has it
};

class Service {
 public:
  // `server` outlives the service. Nothing is served but /health, which says that the model is loading, until
  // begin().
  Service(http::SocketServer& server, ServiceOptions options, const Clock& clock);
  ~Service();

  http::Handler handler();
  // On the I/O thread.
  void begin(std::unique_ptr<Engine> engine, ServedText text, const EngineWatch& watch = {});
  // No more generations are taken; those that run end by themselves.
  void drain() { draining_ = true; }
  // Those that run end now, each with an error that says so.
  void abort_all();
  // The engine will never answer again: those that run end now, and no more are taken.
  void fail_all(const std::string& why);
  // Whether the engine failed for good.
  bool failed() const { return failed_ || (engine_ && engine_->failed()); }
  // Why; empty where it has not, or where its thread cannot be asked.
  std::string failure() const { return engine_ && engine_->failed() ? engine_->failure() : std::string(); }
  // Since the engine last ended a step, or had nothing to do.
  std::chrono::nanoseconds since_a_step() const;
  // Why a step will not come back; empty where nothing says so.
  std::string hanging_step() const;
  // It neither ends steps nor says that it is idle, and no thread of it works; on a GPU not within a step.
  bool stands_still() const;
  // Nothing until begin().
  std::optional<EngineCounts> counts() const;

 private:
  struct Route;
  static const Route routes[];

  using Exchange = std::shared_ptr<TaggedExchange>;

  void handle(Exchange exchange);
  std::optional<ApiError> refused(const http::HttpRequest& request, bool takes_body) const;
  // Takes the request's body to another thread, where `make` makes something of it and of its share of the
  // memory; `finish` gets that back here. An error is answered here too, one for want of room among them.
  template <class Made>
  using Make = std::function<std::variant<Made, ApiError>(std::string body, RequestMemory::Share memory)>;
  // Makes something on another thread, and answers its error or hands it to `finish` here.
  template <class Made>
  void on_work_queue(Exchange exchange, std::function<std::variant<Made, ApiError>()> make,
                     std::function<void(Made made)> finish);
  template <class Made>
  void work_on(Exchange exchange, Make<Made> make, std::function<void(Made made)> finish);
  void health(Exchange exchange);
  void version(Exchange exchange);
  void metrics(Exchange exchange);
  void models(Exchange exchange);
  void live(Exchange exchange);
  void plan(Exchange exchange);
  void tokenizer_info(Exchange exchange);
  void openapi(Exchange exchange);
  void generate(Exchange exchange, Endpoint endpoint);
  // Of /v1/responses: from a stored response on, if it names one.
  void prepare_response(Exchange exchange, ParsedRequest parsed);
  // The stored responses that its input refers to items of. False: there is no room for them.
  bool find_referred(ParsedRequest& parsed);
  void stored_response(Exchange exchange);
  void delete_response(Exchange exchange);
  void cancel_response(Exchange exchange);
  void response_input_items(Exchange exchange);
  // The encoder of a response that keeps what it is asked to keep.
  std::unique_ptr<ResponseEncoder> response_encoder(const GenerationRequest& request, AnswerHead head,
                                                    std::shared_ptr<EventLog> log);
  // An answer that takes time, made on the work queue.
  void work(Exchange exchange,
            std::variant<std::string, ApiError> (Preparer::*make)(std::string body,
                                                                  RequestMemory::Share memory) const);
  void start(Exchange exchange, PreparedRequest prepared);
  Preparer preparer();
  void take(std::vector<DeliveredEvent> events);
  void forget(RequestId first, int choices);

  struct Running {
    std::shared_ptr<Generation> generation;
    int choice = 0;
  };

  http::SocketServer& server_;
  const ServiceOptions options_;
  const Clock& clock_;
  RequestMemory memory_;  // before all that holds shares of it
  ResponseStore stored_;
  std::optional<ServedText> text_;
  GrammarCache grammars_;
  std::chrono::nanoseconds step_limit_{0};
  std::unordered_map<RequestId, Running> running_;
  RequestId next_id_ = 1;
  bool draining_ = false;
  bool aborted_ = false;
  bool failed_ = false;
  std::optional<Metrics> metrics_;  // of engine_
  std::int64_t created_ = 0;        // the model: seconds since 1970
  // Last, so that their threads end before what they use.
  std::unique_ptr<EngineThread> engine_;
  std::unique_ptr<WorkQueue> work_;
};

}  // namespace nibble::api
