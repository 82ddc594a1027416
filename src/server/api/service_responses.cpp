// The routes of stored responses.
#include <algorithm>
#include <charconv>
#include <set>

#include "base/json_writer.h"
#include "base/quote.h"
#include "server/api/response_items.h"
#include "server/api/service.h"
#include "server/http/query.h"

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

std::string id_of(const std::string& item) {
  const Result<JsonDocument> document = JsonDocument::parse(item);
  const auto id = document.ok() ? document->root().find("id") : std::nullopt;
  return id && id->is_string() ? std::string(id->as_string()) : std::string();
}

// A parameter that is a number, if it is there.
Refused number_of(std::string_view query, const std::string& name, std::size_t least, std::size_t most,
                  std::optional<std::size_t>& number) {
  const std::optional<std::string> value = http::query_value(query, name);
  if (!value) return {};
  std::size_t read = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), read);
  if (error != std::errc() || end != value->data() + value->size() || read < least || read > most)
    return bad_field(name,
                     " must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  number = read;
  return {};
}

Refused switch_of(std::string_view query, const std::string& name, bool& on) {
  const std::optional<std::string> value = http::query_value(query, name);
  if (!value) return {};
  on = *value == "true";
  if (!on && *value != "false") return bad_field(name, " must be true or false");
  return {};
}

// The part of a list that a client asks for.
struct Page {
  bool ascending = false;
  std::size_t limit = 20;
  std::string after;  // the last item that the client has; empty: none
};

Refused read_page(std::string_view query, Page& page) {
  if (const auto order = http::query_value(query, "order")) {
    page.ascending = *order == "asc";
    if (!page.ascending && *order != "desc") return bad_field("order", " must be asc or desc");
  }
  std::optional<std::size_t> limit;
  if (Refused refused = number_of(query, "limit", 1, 100, limit)) return refused;
  page.limit = limit.value_or(page.limit);
  page.after = http::query_value(query, "after").value_or("");
  return {};
}

std::variant<std::string, ApiError> items_page(std::vector<std::string> items, const Page& page) {
  if (!page.ascending) std::reverse(items.begin(), items.end());
  std::size_t first = 0;
  if (!page.after.empty()) {
    while (first < items.size() && id_of(items[first]) != page.after) ++first;
    if (first++ == items.size()) return bad_field("after", " names no item of this response");
  }
  const std::size_t end = std::min(items.size(), first + page.limit);
  std::string body;
  JsonWriter json(body);
  json.begin_object().member("object", "list").key("data").begin_array();
  for (std::size_t i = first; i < end; ++i) json.raw(items[i]);
  json.end_array();
  for (const std::string_view name : {"first_id", "last_id"}) {
    json.key(name);
    first < end ? json.value(id_of(items[name == "first_id" ? first : end - 1])) : json.null();
  }
  json.member("has_more", end < items.size()).end_object();
  return body;
}

}  // namespace

std::unique_ptr<ResponseEncoder> Service::response_encoder(const GenerationRequest& request, AnswerHead head,
                                                           std::shared_ptr<EventLog> log) {
  ResponseEncoder::Keep keep;
  if (request.response.store) {
    keep = [this, id = head.id, items = request.response.input_items, before = request.response.conversation,
            background = request.response.background, log = std::move(log)](EndedResponse ended) {
      std::shared_ptr<std::vector<Message>> conversation;
      if (!ended.failed) {
        conversation = std::make_shared<std::vector<Message>>(*before);
        conversation->push_back(std::move(ended.answer));
      }
      stored_.put(id, {.json = std::move(ended.json),
                       .input_items = items,
                       .conversation = std::move(conversation),
                       .running = {},
                       .if_cancelled = {},
                       .background = background,
                       .events = log});
    };
  }
  return std::make_unique<ResponseEncoder>(std::move(head), request, text_->tokenizer, clock_,
                                           std::move(keep));
}

bool Service::find_referred(ParsedRequest& parsed) {
  std::set<std::string> wanted;
  for (const std::string& item : parsed.request.response_input.referred) {
    if (auto id = response_of_item(item)) wanted.insert(*std::move(id));
  }
  for (const std::string& id : wanted) {
    const StoredResponse* found = stored_.find(id);
    if (found == nullptr) continue;
    constexpr std::size_t of_a_byte = 24;  // the text, and no byte is more than a value
    if (!parsed.memory.hold_to_read(parsed.memory.bytes() + of_a_byte * found->json.size())) return false;
    if (Result<JsonDocument> read = JsonDocument::parse(found->json); read.ok())
      parsed.request.response_input.sources.push_back(*std::move(read));
  }
  return true;
}

void Service::stored_response(Exchange exchange) {
  const std::string id = name_in(exchange->request().head.path), &query = exchange->request().head.query;
  const StoredResponse* found = stored_.find(id);
  if (found == nullptr) return answer_error(exchange, no_such_response(id));
  bool stream = false;
  std::optional<std::size_t> seen;
  Refused refused = switch_of(query, "stream", stream);
  constexpr std::size_t most_events = std::size_t{1} << 40;
  if (!refused) refused = number_of(query, "starting_after", 0, most_events, seen);
  if (!refused && seen && !stream) refused = bad_field("starting_after", " goes with stream=true only");
  if (!refused && stream && !found->events)
    refused = bad_field(
        "stream", ": only a response that was asked for with background and stream has events to tell again");
  if (refused) return answer_error(exchange, *refused);
  if (!stream) return exchange->answer({.body = found->json});
  found->events->tell(exchange, seen ? *seen + 1 : 0);
}

void Service::delete_response(Exchange exchange) {
  const std::string id = name_in(exchange->request().head.path);
  const StoredResponse* found = stored_.find(id);
  if (found == nullptr) return answer_error(exchange, no_such_response(id));
  if (found->running) forget(*found->running, 1);
  if (found->events) found->events->end();
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

// One that has ended is told as it is: whoever cancels cannot know that it was faster.
void Service::cancel_response(Exchange exchange) {
  const std::string id = name_in(exchange->request().head.path);
  const StoredResponse* found = stored_.find(id);
  if (found == nullptr) return answer_error(exchange, no_such_response(id));
  if (!found->background) {
    return answer_error(exchange, {.message = "the response " + quote(id) + " was not made in the background",
                                   .param = "response_id"});
  }
  if (!found->running) return exchange->answer({.body = found->json});
  forget(*found->running, 1);
  StoredResponse left = *found;
  left.json = std::exchange(left.if_cancelled, {});
  left.running.reset();
  std::string body = left.json;
  if (left.events) left.events->end();
  stored_.put(id, std::move(left));
  exchange->answer({.body = std::move(body)});
}

void Service::response_input_items(Exchange exchange) {
  const std::string id = name_in(exchange->request().head.path);
  const StoredResponse* found = stored_.find(id);
  if (found == nullptr) return answer_error(exchange, no_such_response(id));
  Page page;
  if (Refused refused = read_page(exchange->request().head.query, page))
    return answer_error(exchange, *refused);
  auto list = items_page(found->input_items, page);
  if (const auto* error = std::get_if<ApiError>(&list)) return answer_error(exchange, *error);
  exchange->answer({.body = std::get<std::string>(std::move(list))});
}

}  // namespace nibble::api
