#include "server/http/session.h"

#include "base/check.h"

namespace nibble::http {
namespace {

// Of its memory too, which clear() would keep: thousands of idle clients hold nothing.
void empty(std::string& text) { std::string().swap(text); }

}  // namespace

void Session::receive(std::string_view bytes, Time now) {
  if (closing_ || bytes.empty()) return;
  if (!begun_ && !answering_) {
    begun_ = true;
    since_ = now;
  }
  received_ += bytes;
}

void Session::receive_end() {
  at_end_ = true;
  // Nobody waits for an answer to half a request.
  if (!answering_ && received_.empty()) closing_ = true;
}

Session::Next Session::refuse(Refusal refusal) {
  empty(received_);
  keep_alive_ = false;
  if (!head_) head_.emplace().client = client_;
  body_.reset();
  screened_.reset();
  answering_ = true;
  head_only_ = head_->method == "HEAD";
  chunked_ = true;
  return refusal;
}

// The head is there: how its body will be read.
std::optional<Refusal> Session::begin_body() {
  if (screen_ != nullptr && *screen_) screened_ = (*screen_)(*head_);
  const bool waits = head_->expects_continue && received_.empty();
  if (screened_ && waits) {
    // The client will not send the body, or may: nobody can tell what follows.
    head_->framing = BodyFraming::none;
    head_->keep_alive = false;
  }
  auto started = BodyReader::start(*head_, limits_.body_bytes, !screened_);
  if (const auto* refusal = std::get_if<Refusal>(&started)) return *refusal;
  body_ = std::get<BodyReader>(std::move(started));
  if (waits && !screened_) output_ += "HTTP/1.1 100 Continue\r\n\r\n";
  return {};
}

Session::Next Session::next(Time now) {
  while (!answering_ && !closing_) {
    if (!head_) {
      const auto found = find_head(received_, limits_.head);
      if (const auto* refusal = std::get_if<Refusal>(&found)) return refuse(*refusal);
      if (std::holds_alternative<std::monostate>(found)) {
        if (at_end_) closing_ = true;
        return {};
      }
      const HeadExtent extent = std::get<HeadExtent>(found);
      auto parsed = parse_head(std::string_view(received_).substr(extent.begin, extent.end - extent.begin),
                               limits_.head);
      if (const auto* refusal = std::get_if<Refusal>(&parsed)) return refuse(*refusal);
      head_ = std::get<RequestHead>(std::move(parsed));
      head_->client = client_;
      asked_ = true;
      received_.erase(0, extent.end);
      if (auto refusal = begin_body()) return refuse(*std::move(refusal));
    }
    const auto taken = body_->take(received_);
    if (const auto* refusal = std::get_if<Refusal>(&taken)) return refuse(*refusal);
    received_.erase(0, std::get<std::size_t>(taken));
    if (received_.empty()) empty(received_);
    if (!body_->complete()) {
      if (at_end_) closing_ = true;
      return {};
    }
    HttpRequest request{.head = std::move(*head_), .body = body_->release()};
    head_.reset();
    body_.reset();
    answering_ = true;
    begun_ = false;
    since_ = now;
    keep_alive_ = request.head.keep_alive;
    chunked_ = request.head.minor_version == 1;
    head_only_ = request.head.method == "HEAD";
    if (!screened_) return request;
    answer(*std::exchange(screened_, {}), now);
  }
  return {};
}

void Session::probe(std::string_view comment) {
  if (!answering_ || closing_) return;
  if (streaming_) return stream(comment);
  if (chunked_) output_ += "HTTP/1.1 100 Continue\r\n\r\n";  // which 1.0 does not know
}

void Session::answer(const Response& response, Time now) {
  NIBBLE_CHECK(answering_ && !streaming_);
  const bool bodiless = response.status == 204 || response.status == 304;
  NIBBLE_CHECK(!bodiless || response.body.empty());
  output_ +=
      response_head(response, bodiless ? Ending::none : Ending::length, response.body.size(), keeps_alive());
  if (!head_only_) output_ += response.body;
  finish(now);
}

void Session::begin_stream(const Response& head) {
  NIBBLE_CHECK(answering_ && !streaming_);
  streaming_ = true;
  if (!chunked_) keep_alive_ = false;  // its end is the connection's
  output_ += response_head(head, chunked_ ? Ending::chunked : Ending::close, 0, keeps_alive());
}

void Session::stream(std::string_view data) {
  NIBBLE_CHECK(streaming_);
  if (data.empty() || head_only_) return;
  output_ += chunked_ ? chunk(data) : std::string(data);
}

void Session::end_stream(Time now) {
  NIBBLE_CHECK(streaming_);
  streaming_ = false;
  if (chunked_ && !head_only_) output_ += last_chunk;
  finish(now);
}

void Session::break_stream() {
  NIBBLE_CHECK(streaming_);
  streaming_ = answering_ = false;
  closing_ = true;
}

void Session::finish(Time now) {
  answering_ = false;
  head_.reset();
  since_ = now;
  begun_ = !received_.empty();
  if (!keeps_alive()) {
    closing_ = true;
    received_.clear();
  }
}

std::optional<Session::Time> Session::deadline() const {
  if (closing_ || answering_) return {};
  return since_ + (begun_ || head_ ? limits_.request_time : limits_.idle_time);
}

Session::Next Session::expire() {
  if (begun_ || head_) return refuse({408, "the request did not arrive in time"});
  closing_ = true;
  return {};
}

}  // namespace nibble::http
