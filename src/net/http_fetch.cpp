#include "net/http_fetch.h"

#include <algorithm>
#include <array>

#include "base/quote.h"

namespace nibble {
namespace {

using std::chrono::steady_clock;

constexpr int kMostRedirects = 8;
constexpr std::size_t kMostKept = 3;           // the hub, where it keeps large files, and a third
constexpr int kDripWindows = 3;                // times the patience
constexpr std::size_t kLeastBytes = 16 << 10;  // of a body in such a time

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string request_text(const FetchRequest& request, const FetchSettings& settings,
                         const Connection& connection) {
  const bool whole = connection.through_plain_proxy();
  std::string text = "GET " + (whole ? request.url.text() : request.url.path) +
                     " HTTP/1.1\r\nHost: " + request.url.authority() +
                     "\r\nUser-Agent: " + settings.user_agent +
                     "\r\nAccept: */*\r\nAccept-Encoding: identity\r\n";
  if (whole && !connection.options().proxy->authorization.empty())
    text += "Proxy-Authorization: " + connection.options().proxy->authorization + "\r\n";
  if (!request.bearer.empty()) text += "Authorization: Bearer " + request.bearer + "\r\n";
  if (request.range)
    text += "Range: bytes=" + std::to_string(request.range->first) + "-" +
            std::to_string(request.range->second) + "\r\n";
  return text + "\r\n";
}

NetFailure for_good(Status status) { return {.status = std::move(status), .may_pass = false}; }

}  // namespace

std::unique_ptr<Connection> HttpFetcher::take_kept(const Url& url) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&url](const auto& connection) {
    return connection->options().url.same_origin(url);
  });
  if (found == kept_.end()) return nullptr;
  std::unique_ptr<Connection> connection = std::move(*found);
  kept_.erase(found);
  return connection->is_fresh() ? std::move(connection) : nullptr;
}

void HttpFetcher::keep(std::unique_ptr<Connection> connection) {
  if (kept_.size() == kMostKept) kept_.erase(kept_.begin());
  kept_.push_back(std::move(connection));
}

NetFailure HttpFetcher::exchange(Connection& connection, const std::string& bytes, FetchOutcome& outcome,
                                 const Sink& sink, bool& heard) {
  const auto patience = settings_.patience;
  if (Status status = connection.write(bytes, steady_clock::now() + patience); !status.ok())
    return {.status = std::move(status)};
  HttpAnswer& answer = outcome.answer;
  std::array<char, 64 << 10> incoming;
  Status refused;
  std::size_t in_window = 0;
  Deadline window_end = steady_clock::now() + kDripWindows * patience;
  const auto on_body = [&](std::string_view part) {
    in_window += part.size();
    if (refused.ok() && sink && !is_redirect(answer.status())) refused = sink(answer, part);
  };
  while (!answer.complete()) {
    const Result<std::size_t> got =
        connection.read(incoming.data(), incoming.size(), steady_clock::now() + patience);
    if (!got.ok()) return {.status = got.status(), .may_pass = got.status().code() != StatusCode::cancelled};
    if (*got == 0) {
      if (Status status = answer.end(); !status.ok()) return {.status = std::move(status)};
      break;
    }
    heard = true;
    if (Status status = answer.take({incoming.data(), *got}, on_body); !status.ok())
      return {.status = std::move(status)};
    if (!refused.ok()) return for_good(std::move(refused));
    // What a redirect says besides is of no interest, and may be long.
    if (is_redirect(answer.status()) && in_window > kLeastBytes) return {};
    if (steady_clock::now() < window_end) continue;
    if (in_window < kLeastBytes && !answer.complete()) return {.status = io_error("it sends in drips")};
    in_window = 0;
    window_end = steady_clock::now() + kDripWindows * patience;
  }
  return {};
}

FetchOutcome HttpFetcher::get_once(const FetchRequest& request, const Sink& sink) {
  FetchOutcome outcome{.failure = {}, .answer = {}, .url = request.url};
  if (request.url.secure() && settings_.trust == nullptr) {
    outcome.failure = for_good(internal_error("no certificates were loaded"));
    return outcome;
  }
  const Result<std::optional<Proxy>> proxy = choose_proxy(settings_.proxies, request.url);
  if (!proxy.ok()) {
    outcome.failure = for_good(proxy.status());
    return outcome;
  }
  for (std::unique_ptr<Connection> connection = take_kept(request.url);;) {
    const bool used_before = connection != nullptr;
    if (!connection) {
      connection = Connection::open({.url = request.url,
                                     .proxy = *proxy,
                                     .trust = settings_.trust,
                                     .patience = settings_.patience,
                                     .cancelled = settings_.cancelled},
                                    outcome.failure);
      if (!connection) return outcome;
    }
    bool heard = false;
    outcome.answer = {};
    outcome.failure =
        exchange(*connection, request_text(request, settings_, *connection), outcome, sink, heard);
    // A kept connection may have been closed by the server just as it was used again.
    if (!outcome.failure.status.ok() && used_before && !heard && outcome.failure.may_pass) {
      connection.reset();
      continue;
    }
    if (outcome.failure.status.ok() && outcome.answer.complete() && outcome.answer.keeps_alive())
      keep(std::move(connection));
    return outcome;
  }
}

FetchOutcome HttpFetcher::get(const FetchRequest& request, const Sink& sink) {
  FetchRequest next = request;
  for (int redirects = 0;; ++redirects) {
    FetchOutcome outcome = get_once(next, sink);
    const std::optional<std::string_view> location = outcome.answer.header("location");
    if (!outcome.failure.status.ok() || !is_redirect(outcome.answer.status()) || !location) return outcome;
    const Result<Url> target = resolve_location(next.url, *location);
    if (!target.ok()) {
      outcome.failure = for_good(io_error(quote(next.url.host) + " sends on to " + quote(*location, 80) +
                                          ", which is no http or https address"));
      return outcome;
    }
    if (next.url.secure() && !target->secure()) {
      outcome.failure = for_good(io_error(quote(next.url.host) + " sends on to " + quote(target->host) +
                                          " without encryption; refused"));
      return outcome;
    }
    if (redirects == kMostRedirects) {
      outcome.failure = for_good(io_error(quote(next.url.host) + " sends on and on; is the address right?"));
      return outcome;
    }
    if (!target->same_origin(request.url)) next.bearer.clear();
    next.url = *target;
  }
}

}  // namespace nibble
