// nibble health: asks a running server whether it serves; for probes of containers that have no other client.
#include <chrono>
#include <memory>
#include <utility>

#include "app/commands.h"
#include "app/http_client.h"
#include "base/json.h"
#include "base/quote.h"

namespace nibble {
namespace {

struct Options {
  std::string url;
  int port = 8000;
  int timeout = 3;
};

// The word of {"status": "ok"}; empty where there is none.
std::string status_word(std::string body) {
  const Result<JsonDocument> document = JsonDocument::parse(std::move(body));
  const auto word = document.ok() ? document->root().find("status") : std::nullopt;
  return word && word->is_string() ? escape(word->as_string()) : "";
}

Status run(const Options& options, Console& console) {
  const std::string url =
      options.url.empty() ? "http://127.0.0.1:" + std::to_string(options.port) : options.url;
  Result<HttpTarget> target = read_url(url);
  if (!target.ok()) return target.status().with_context("URL " + quote(url));
  NIBBLE_ASSIGN(const std::unique_ptr<HttpClient> client, HttpClient::make(*std::move(target)));
  int status = 0;
  std::string body;
  Status outcome = io_error("no answer within " + std::to_string(options.timeout) + " s");
  client->at(std::chrono::steady_clock::now() + std::chrono::seconds(options.timeout),
             [&] { client->stop(); });
  client->send({.path = "/health"}, {.body = [&](int, std::string_view bytes) { body += bytes; },
                                     .done =
                                         [&](int answered, const Status& end) {
                                           status = answered;
                                           outcome = end;
                                           client->stop();
                                         }});
  client->run();
  if (!outcome.ok()) {
    return io_error(url + ": " + outcome.message() + "; is the server running, and is this its address?");
  }
  const std::string word = status_word(body);
  if (status != 200) {
    return io_error(url + " answers " + std::to_string(status) + (word.empty() ? "" : " " + word) +
                    "; it serves once /health answers 200");
  }
  std::fprintf(console.out, "%s\n", word.empty() ? "ok" : word.c_str());
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "URL",
                       .help = "the server's http address; without it, this machine at --port",
                       .target = &options->url,
                       .required = false}};
  line.options = {{.name = "--port",
                   .value = "N",
                   .help = "of a server on this machine",
                   .default_text = std::to_string(options->port),
                   .set = int_value(options->port, 1, 65535)},
                  {.name = "--timeout",
                   .value = "SECONDS",
                   .help = "for the answer",
                   .default_text = std::to_string(options->timeout),
                   .set = int_value(options->timeout, 1, 3600)}};
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command health_command{.name = "health",
                             .summary = "whether a server serves: exit code 0 or 1",
                             .example = "nibble health http://127.0.0.1:8000",
                             .declare = declare};

}  // namespace nibble
