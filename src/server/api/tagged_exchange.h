// An exchange whose answer carries header fields that were known before it: whole answers, streams and errors
// alike.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/http/exchange.h"

namespace nibble::api {

class TaggedExchange final : public http::Exchange {
 public:
  explicit TaggedExchange(std::shared_ptr<http::Exchange> inner) : inner_(std::move(inner)) {}

  // The value must be fit for a header (http::is_field).
  void tag(std::string name, std::string value) { fields_.emplace_back(std::move(name), std::move(value)); }

  const http::HttpRequest& request() const override { return inner_->request(); }
  std::string take_body() override { return inner_->take_body(); }
  void answer(http::Response response) override { inner_->answer(tagged(std::move(response))); }
  void begin_stream(http::Response head) override { inner_->begin_stream(tagged(std::move(head))); }
  void stream(std::string_view data) override { inner_->stream(data); }
  void end_stream() override { inner_->end_stream(); }
  void break_stream() override { inner_->break_stream(); }
  void on_gone(std::function<void()> gone) override { inner_->on_gone(std::move(gone)); }
  void describe(std::shared_ptr<const http::AnswerFacts> facts) override {
    inner_->describe(std::move(facts));
  }

 private:
  http::Response tagged(http::Response response) const {
    response.fields.insert(response.fields.end(), fields_.begin(), fields_.end());
    return response;
  }

  std::shared_ptr<http::Exchange> inner_;
  std::vector<std::pair<std::string, std::string>> fields_;
};

}  // namespace nibble::api
