#include "server/http/connection.h"

#include <algorithm>
#include <functional>

namespace nibble::http {
namespace {

using std::chrono::steady_clock;

// How long an answer may take before a client that sends no more is asked for a sign of life.
constexpr std::chrono::milliseconds probe_time{300};

}  // namespace

// What a handler holds of a request. Outlives its connection if it must; then it does nothing.
class Connection::Turn final : public Exchange {
 public:
  Turn(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)), held_(request_.body.capacity()) {
    connection_->owner_.hold(held_);
  }
  // Let go of without an answer: the client should not wait for one.
  ~Turn() override {
    connection_->owner_.let_go(held_);
    if (here()) connection_->close();
  }

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override {
    connection_->owner_.let_go(std::exchange(held_, 0));
    return std::exchange(request_.body, {});
  }

  void answer(Response response) override {
    if (!here()) return;
    connection_->session_.answer(response, steady_clock::now());
    finish();
  }
  void begin_stream(Response head) override {
    if (!here()) return;
    const bool has_comments = head.content_type == "text/event-stream";
    connection_->session_.begin_stream(head);
    if (has_comments) quiet_time_ = connection_->owner_.limits().keep_alive_comment;
    said();
  }
  void stream(std::string_view data) override {
    if (!here()) return;
    connection_->session_.stream(data);
    // What one step adds is sent before it counts.
    if (connection_->sending_ && connection_->session_.unsent() > connection_->owner_.limits().unsent_bytes)
      return connection_->close();
    said();
  }
  void end_stream() override {
    if (!here()) return;
    connection_->session_.end_stream(steady_clock::now());
    finish();
  }
  void break_stream() override {
    if (!here()) return;
    connection_->session_.break_stream();
    finish();
  }
  void on_gone(std::function<void()> gone) override {
    if (gone_) return gone();
    on_gone_ = std::move(gone);
  }

  void client_gone() {
    if (done_ || gone_) return;
    gone_ = true;
    if (on_gone_) std::exchange(on_gone_, nullptr)();
  }

  // A proxy between closes what is silent for a minute, as a rule; a request may wait for longer than that.
  void keep_alive() {
    if (!here()) return;
    connection_->say_sign_of_life(": keep-alive\n\n");
    said();
  }

 private:
  bool here() const { return !done_ && !gone_; }
  void said() {
    if (quiet_time_.count() > 0) connection_->keep_alive_at_ = steady_clock::now() + quiet_time_;
    connection_->wake();
  }
  void finish() {
    done_ = true;
    on_gone_ = nullptr;
    connection_->keep_alive_at_.reset();
    connection_->wake();
  }

  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  std::size_t held_;
  std::function<void()> on_gone_;
  std::chrono::milliseconds quiet_time_{0};  // of this stream; 0: it has no comments
  bool done_ = false;
  bool gone_ = false;
};

Connection::Connection(ConnectionOwner& owner, Places::Id place, std::unique_ptr<SocketStream> stream,
                       std::string client)
    : owner_(owner),
      place_(place),
      stream_(std::move(stream)),
      session_(owner.limits().session, steady_clock::now(), &owner.handler().screen, std::move(client)),
      timer_(owner.io()) {}

void Connection::start() {
  patient_until_ = steady_clock::now() + owner_.limits().session.request_time;
  set_timer();
  stream_->open(shared_from_this());
}

void Connection::opened(asio::error_code error) {
  if (phase_ == Phase::closed) return;
  if (error) return close();
  phase_ = Phase::talking;
  patient_until_.reset();
  set_timer();
  read();
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  stream_->close();
  timer_.cancel();
  if (const std::shared_ptr<Turn> turn = turn_.lock()) turn->client_gone();
  count_held(0);
  owner_.left(place_);
}

Stage Connection::stage() const {
  if (phase_ == Phase::lingering) return Stage::leaving;
  if (session_.answering() || sending_ || session_.has_output()) return Stage::served;
  switch (session_.awaits()) {
    case Session::Awaits::head: return Stage::head;
    case Session::Awaits::body: return Stage::body;
    case Session::Awaits::request: break;
  }
  return Stage::idle;
}

void Connection::count_held(std::size_t bytes) {
  owner_.let_go(held_);
  owner_.hold(bytes);
  held_ = bytes;
}

void Connection::wake() {
  if (phase_ == Phase::closed || std::exchange(waking_, true)) return;
  asio::post(owner_.io(), [self = shared_from_this()] {
    self->waking_ = false;
    self->advance();
  });
}

// Whoever may have made room for more bytes calls this: what wants_bytes() says changes nowhere else.
void Connection::read() {
  if (phase_ == Phase::closed || reading_ || input_ended_) return;
  if (phase_ == Phase::talking && !session_.wants_bytes()) return;
  reading_ = true;
  stream_->read(shared_from_this());
}

void Connection::received(asio::error_code error, std::string_view bytes) {
  reading_ = false;
  if (phase_ == Phase::closed) return;
  if (error == asio::error::eof && phase_ == Phase::talking) return input_ended();
  if (error) return close();
  if (phase_ == Phase::talking) {
    session_.receive(bytes, steady_clock::now());
    count_held(session_.held());
    wake();
  }
  read();
}

// The client may wait for its answer, or be gone: both look the same until something is sent to it. An answer
// that comes soon tells; before a longer one, a sign of life is sent for the purpose.
void Connection::input_ended() {
  input_ended_ = true;
  session_.receive_end();
  stream_->watch(shared_from_this());
  probe_at_ = steady_clock::now() + probe_time;
  wake();
}

void Connection::say_sign_of_life(std::string_view comment) {
  if (sending_) return;  // what is being sent tells as much
  session_.probe(comment);
  wake();
}

void Connection::take(Session::Next next) {
  if (const auto* refusal = std::get_if<Refusal>(&next)) {
    session_.answer(owner_.handler().refusal(*refusal, session_.refused_head()), steady_clock::now());
  } else if (auto* request = std::get_if<HttpRequest>(&next)) {
    const auto turn = std::make_shared<Turn>(shared_from_this(), std::move(*request));
    turn_ = turn;
    owner_.handler().request(turn);
  }
}

void Connection::advance() {
  if (phase_ != Phase::talking) return;
  if (const auto deadline = session_.deadline(); deadline && steady_clock::now() >= *deadline)
    take(session_.expire());
  if (!sending_) take(session_.next(steady_clock::now()));
  if (phase_ == Phase::closed) return;
  if (!session_.answering() && owner_.holds_too_much() &&
      session_.held() > owner_.limits().session.ahead_bytes)
    take(session_.refuse({503, "the server holds as many requests as it may; try again later"}));
  if (phase_ == Phase::closed) return;
  count_held(session_.held());
  if (!sending_ && session_.has_output()) send();
  if (!sending_ && session_.closing()) return input_ended_ ? close() : linger();
  if (!sending_ && owner_.stopping() && !session_.answering()) return close();
  owner_.moved(place_, stage());
  read();
  set_timer();
}

void Connection::send() {
  if (!sending_) {
    sending_ = true;
    outgoing_ = session_.take_output();
    sent_ = 0;
  }
  session_.set_unsent(outgoing_.size() - sent_);
  patient_until_ = steady_clock::now() + owner_.limits().write_time;
  stream_->write(shared_from_this(), outgoing_.data() + sent_, outgoing_.size() - sent_);
}

void Connection::sent(asio::error_code error, std::size_t size) {
  if (phase_ == Phase::closed) return;
  if (error) return close();
  sent_ += size;
  if (sent_ < outgoing_.size()) return send();
  patient_until_.reset();
  sending_ = false;
  std::string().swap(outgoing_);
  session_.set_unsent(0);
  advance();
}

// The client may still be sending: closing now would reset the connection before the answer is read. So no
// more is sent, and what comes is read and forgotten for a moment.
void Connection::linger() {
  phase_ = Phase::lingering;
  owner_.moved(place_, Stage::leaving);
  stream_->end_writing(shared_from_this());
  patient_until_ = steady_clock::now() + owner_.limits().linger_time;
  set_timer();
  read();
}

std::optional<Session::Time> Connection::next_due() const {
  std::optional<Session::Time> due = phase_ == Phase::talking ? session_.deadline() : std::nullopt;
  for (const auto& other : {patient_until_, probe_at_, keep_alive_at_}) {
    if (other && (!due || *other < *due)) due = other;
  }
  return due;
}

void Connection::set_timer() {
  const std::optional<Session::Time> due = next_due();
  if (phase_ == Phase::closed || !due || (rings_at_ && *rings_at_ <= *due)) return;
  rings_at_ = due;
  timer_.expires_at(*due);  // which cancels a later one
  timer_.async_wait([self = weak_from_this()](asio::error_code error) {
    const auto connection = self.lock();
    if (!error && connection) connection->ring();
  });
}

void Connection::ring() {
  if (phase_ == Phase::closed) return;
  rings_at_.reset();
  const auto now = steady_clock::now();
  if (patient_until_ && now >= *patient_until_) return close();
  if (probe_at_ && now >= *probe_at_) {
    probe_at_.reset();
    say_sign_of_life(":\n\n");
  }
  if (keep_alive_at_ && now >= *keep_alive_at_) {
    keep_alive_at_.reset();
    if (const std::shared_ptr<Turn> turn = turn_.lock()) turn->keep_alive();
  }
  if (const auto deadline = session_.deadline(); phase_ == Phase::talking && deadline && now >= *deadline)
    return advance();
  set_timer();
}

}  // namespace nibble::http
