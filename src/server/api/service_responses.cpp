// The routes of stored responses.
#include "base/json_writer.h"
#include "base/quote.h"
#include "server/api/service.h"

namespace nibble::api {
namespace {

constexpr std::string_view prefix = "/v1/responses/";

// The name in the path, which may have what is asked of it behind.
std::string name_in(std::string_view path) {
  path.remove_prefix(prefix.size());
  for (const std::string_view end : {"/cancel", "/input_items"}) {
    if (path.ends_with(end)) path.remove_suffix(end.size());
  }
  return std::string(path);
}

void answer_error(const std::shared_ptr<TaggedExchange>& exchange, const ApiError& error) {
  exchange->answer({.status = error.status, .body = error.json()});
}

ApiError no_such_response(const std::string& id) {
  return {.status = 404,
          .type = "not_found_error",
          .message = "there is no stored response " + quote(id) +
                     "; it was never stored, was deleted, or had to make room",
          .param = "response_id",
          .code = "response_not_found"};
}

// An id of an item, for `first_id` and `last_id`: the first member of each.
void add_item_id(JsonWriter& json, std::string_view name, const std::string& item) {
  const Result<JsonDocument> document = JsonDocument::parse(item);
  json.key(name);
  document.ok() ? json.value(document->root().find("id")->as_string()) : json.null();
}

}  // namespace

std::unique_ptr<ResponseEncoder> Service::response_encoder(const GenerationRequest& request,
                                                           AnswerHead head) {
  ResponseEncoder::Keep keep;
  if (request.response.store) {
    keep = [this, id = head.id, items = request.response.input_items,
            before = request.response.conversation](EndedResponse ended) {
      std::shared_ptr<std::vector<Message>> conversation;
      if (!ended.failed) {
        conversation = std::make_shared<std::vector<Message>>(*before);
        conversation->push_back(std::move(ended.answer));
      }
      stored_.put(id, {.json = std::move(ended.json),
                       .input_items = items,
                       .conversation = std::move(conversation),
                       .running = {},
                       .if_cancelled = {}});
    };
  }
  return std::make_unique<ResponseEncoder>(std::move(head), request, text_->tokenizer, std::move(keep));
}

void Service::stored_response(Exchange exchange) {
  const std::string id = name_in(exchange->request().head.path);
  if (exchange->request().head.query.find("stream=true") != std::string::npos)
    return answer_error(exchange, bad_field("stream", " is not served of a stored response"));
  const StoredResponse* found = stored_.find(id);
  if (found == nullptr) return answer_error(exchange, no_such_response(id));
  exchange->answer({.body = found->json});
}

void Service::delete_response(Exchange exchange) {
  const std::string id = name_in(exchange->request().head.path);
  const StoredResponse* found = stored_.find(id);
  if (found == nullptr) return answer_error(exchange, no_such_response(id));
  if (found->running) forget(*found->running, 1);
  stored_.erase(id);
  std::string body;
  JsonWriter(body)
      .begin_object()
      .member("id", id)
      .member("object", "response")
      .member("deleted", true)
      .end_object();
  exchange->answer({.body = std::move(body)});
}

void Service::cancel_response(Exchange exchange) {
  const std::string id = name_in(exchange->request().head.path);
  const StoredResponse* found = stored_.find(id);
  if (found == nullptr) return answer_error(exchange, no_such_response(id));
  if (!found->running) {
    return answer_error(exchange,
                        {.message = "the response " + quote(id) + " is not made in the background now",
                         .param = "response_id"});
  }
  forget(*found->running, 1);
  StoredResponse left{.json = found->if_cancelled,
                      .input_items = found->input_items,
                      .conversation = {},
                      .running = {},
                      .if_cancelled = {}};
  std::string body = left.json;
  stored_.put(id, std::move(left));
  exchange->answer({.body = std::move(body)});
}

void Service::response_input_items(Exchange exchange) {
  const std::string id = name_in(exchange->request().head.path);
  const StoredResponse* found = stored_.find(id);
  if (found == nullptr) return answer_error(exchange, no_such_response(id));
  const std::vector<std::string>& items = found->input_items;
  const bool ascending = exchange->request().head.query.find("order=asc") != std::string::npos;
  std::string body;
  JsonWriter json(body);
  json.begin_object().member("object", "list").key("data").begin_array();
  for (std::size_t i = 0; i < items.size(); ++i) json.raw(items[ascending ? i : items.size() - 1 - i]);
  json.end_array();
  add_item_id(json, "first_id", ascending ? items.front() : items.back());
  add_item_id(json, "last_id", ascending ? items.back() : items.front());
  json.member("has_more", false).end_object();
  exchange->answer({.body = std::move(body)});
}

}  // namespace nibble::api
