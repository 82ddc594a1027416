// The routes: what each path answers. Generations run in the engine, everything that takes time on the work
// queue, and all state lives on the I/O thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "engine/engine_thread.h"
#include "server/api/generation.h"
#include "server/http/socket_server.h"
#include "server/work_queue.h"
#include "text/chat_prompt.h"

namespace nibble::api {

struct ServiceOptions {
  std::string served_name;  // of the model
  std::string version;      // of the program
  std::string api_key;      // empty: none is asked for
  int most_waiting = 256;   // generations in the queue
  std::uint64_t seed = 0;   // of requests that name none
};

// What a model's folder gave beside its weights.
struct ServedText {
  Tokenizer tokenizer;
  std::optional<ChatPrompter> chat;  // nothing: the model has no chat template
};

class Service {
 public:
  // `server` outlives the service. Nothing is served but /health, which says that the model is loading, until
  // begin().
  Service(http::SocketServer& server, ServiceOptions options, const Clock& clock);
  ~Service();

  http::Handler handler();
  // On the I/O thread.
  void begin(std::unique_ptr<Engine> engine, ServedText text);
  // No more generations are taken; those that run end by themselves.
  void drain() { draining_ = true; }

 private:
  struct Route;
  static const Route routes[];

  void handle(std::shared_ptr<http::Exchange> exchange);
  std::optional<ApiError> refused(const http::HttpRequest& request) const;
  void health(std::shared_ptr<http::Exchange> exchange);
  void version(std::shared_ptr<http::Exchange> exchange);
  void models(std::shared_ptr<http::Exchange> exchange);
  void live(std::shared_ptr<http::Exchange> exchange);
  void generate(std::shared_ptr<http::Exchange> exchange, Endpoint endpoint);
  void tokenize(std::shared_ptr<http::Exchange> exchange);
  void detokenize(std::shared_ptr<http::Exchange> exchange);

  std::variant<PreparedRequest, ApiError> prepare(Endpoint endpoint,
                                                  std::string body) const;  // on the work queue
  void start(std::shared_ptr<http::Exchange> exchange, PreparedRequest prepared);
  void take(std::vector<DeliveredEvent> events);
  void forget(RequestId first, int choices);

  struct Running {
    std::shared_ptr<Generation> generation;
    int choice = 0;
  };

  http::SocketServer& server_;
  const ServiceOptions options_;
  const Clock& clock_;
  std::optional<ServedText> text_;
  std::unordered_map<RequestId, Running> running_;
  RequestId next_id_ = 1;
  std::uint64_t answers_ = 0;
  bool draining_ = false;
  // Last, so that their threads end before what they use.
  std::unique_ptr<EngineThread> engine_;
  std::unique_ptr<WorkQueue> work_;
};

}  // namespace nibble::api
