#include "server/api/prepare.h"

#include <algorithm>

#include "base/json_copy.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "core/token_constraint.h"
#include "server/api/answer_constraint.h"
#include "server/api/chat_messages.h"
#include "server/api/field_reader.h"
#include "server/api/response_items.h"
#include "server/api/response_store.h"
#include "server/api/truncation.h"

namespace nibble::api {

ApiError no_such_model(std::string_view served) {
  return {.status = 404,
          .type = "not_found_error",
          .message = "there is no such model; the served one is " + quote(served),
          .param = "model",
          .code = "model_not_found"};
}

namespace {

// While a body is read: itself, a text in it and that text's tokens; and its values, of which an object's
// keys are sorted and an array's numbers copied.
std::size_t bytes_to_read(std::string_view body) {
  constexpr std::size_t of_a_byte = 6, of_a_value = 24;
  return body.size() * of_a_byte + most_json_values(body) * of_a_value;
}

// A constraint's place in its grammar, and its masks: one for each token that a step may choose.
std::size_t bytes_of_a_constraint(const ModelInfo& model) {
  constexpr std::size_t of_a_place = std::size_t{40} << 10;
  const std::size_t mask = token_mask_words(model.vocabulary) * sizeof(std::uint32_t);
  return of_a_place + mask * (static_cast<std::size_t>(model.plan.draft_tokens) + 1);
}

// What a prepared request holds, and its requests to the engine.
std::size_t bytes_to_run(const PreparedRequest& prepared, const ModelInfo& model) {
  const Sampling& sampling = prepared.request.sampling;
  constexpr std::size_t of_a_choice = 4096;    // its state here and in the engine
  constexpr std::size_t of_a_told_token = 96;  // of prompt_logprobs, in the answer
  std::size_t choice = of_a_choice + sampling.logit_bias.size() * sizeof(TokenBias) +
                       sampling.stop_token_ids.size() * sizeof(TokenId);
  std::size_t bytes = sampling.logit_bias.size() * sizeof(TokenBias);
  for (const std::string& stop : sampling.stop) bytes += 6 * stop.size();  // with its automaton
  if (prepared.limits) bytes += prepared.limits->bytes();
  if (prepared.prediction) bytes += prepared.prediction->size() * sizeof(TokenId);
  const ResponseOptions& response = prepared.request.response;
  for (const std::string& item : response.input_items) bytes += 2 * item.size();
  if (response.conversation) bytes += bytes_of(*response.conversation);
  const auto n = static_cast<std::size_t>(prepared.request.n);
  for (const PreparedPrompt& prompt : prepared.prompts) {
    const std::size_t ids = prompt.ids.size() * sizeof(TokenId);
    if (prompt.answer.tools) bytes += prompt.answer.tools->bytes();
    bytes += ids + prompt.text.size() + n * (choice + ids + prompt.text.size());
    const auto told = prompt.ids.size() * static_cast<std::size_t>(prepared.request.prompt_logprobs + 1);
    bytes += told * (sizeof(TokenLogprob) + sizeof(int) + n * of_a_told_token);
    if (prepared.format || prepared.limits || prepared.calls.place != BoundCalls::Place::none)
      bytes += n * bytes_of_a_constraint(model);
  }
  return bytes;
}

// What the names of fields are where an endpoint has its own.
std::string_view conversation_field(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::completions: return "prompt";
    case Endpoint::responses: return "input";
    default: return "messages";
  }
}

std::string_view effort_field(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::responses: return "reasoning.effort";
    case Endpoint::messages: return "output_config.effort";
    default: return "reasoning_effort";
  }
}

// The message begins with the variable's place.
ApiError bad_template_variable(const std::string& message) {
  return {.message = message, .param = message.substr(0, message.find_first_of(": "))};
}

}  // namespace

Refused Preparer::check_model(std::string_view name) const {
  if (name.empty() || name == served_name) return {};
  return no_such_model(served_name);
}

std::variant<ChatPrompt, ApiError> Preparer::render(ChatRequest chat,
                                                    const GenerationRequest& request) const {
  const std::string field(conversation_field(request.endpoint));
  std::optional<ChatPrompter> own;
  if (request.chat_template) {
    auto made = client_template(*request.chat_template);
    if (auto* error = std::get_if<ApiError>(&made)) return std::move(*error);
    own = std::get<ChatPrompter>(std::move(made));
  }
  if (!own && !text.chat) return bad_field(field, ": this model has no chat template; use /v1/completions");
  const ChatPrompter& prompter = own ? *own : *text.chat;
  if (chat.tools && !prompter.reads_calls())
    return bad_field("tools", ": this model's chat template writes calls in no form that is known here");
  chat.reasoning_effort = request.reasoning_effort;
  chat.continue_final_message = request.continue_final_message;
  Result<ChatPrompt> rendered = prompter.render(chat);
  if (rendered.ok()) return std::move(*rendered);
  const std::string& message = rendered.status().message();
  if (message.starts_with("reasoning_effort"))
    return bad_field(std::string(effort_field(request.endpoint)), ": " + message);
  if (message.starts_with("chat_template_kwargs")) return bad_template_variable(message);
  return bad_field(own ? "chat_template" : field, ": " + message);
}

std::variant<ChatPrompter, ApiError> Preparer::client_template(const std::string& source) const {
  constexpr const char* field = "chat_template";
  if (!text.renders_client_templates) {
    return bad_field(field,
                     " is not rendered by this server: leave it out for the model's own, or start the server "
                     "with --trust-request-chat-template");
  }
  const std::string_view about = text.tokenizer_info.empty() ? "{}" : std::string_view(text.tokenizer_info);
  Result<ChatPrompter> made = ChatPrompter::of_request(source, about, text.tokenizer, text.date);
  if (!made.ok()) return bad_field(field, ": " + made.status().message());
  return std::move(*made);
}

ApiError no_room() {
  return {.status = 503,
          .type = "server_error",
          .message = "the requests that are being served hold as much memory as they may; try again later",
          .code = "no_room"};
}

std::vector<TokenId> Preparer::encode(std::string_view prompt, TextTokens how) const {
  const Tokenizer& tokenizer = text.tokenizer;
  std::vector<TokenId> ids = how.parse_special ? tokenizer.encode_trusted(prompt) : tokenizer.encode(prompt);
  if (how.add_special) {
    const auto before = tokenizer.before_text(), behind = tokenizer.behind_text();
    ids.insert(ids.begin(), before.begin(), before.end());
    ids.insert(ids.end(), behind.begin(), behind.end());
  }
  return ids;
}

PreparedPrompt Preparer::prepared_prompt(Prompt prompt, const GenerationRequest& request) const {
  PreparedPrompt made;
  if (auto* given = std::get_if<std::string>(&prompt)) {
    made.ids = encode(*given, request.text_tokens);
    if (request.echo) made.text = std::move(*given);
  } else {
    made.ids = std::get<std::vector<TokenId>>(std::move(prompt));
    if (request.echo) made.text = text.tokenizer.decode(made.ids);
  }
  return made;
}

Refused Preparer::check_room(std::size_t prompt_tokens, const GenerationRequest& request) const {
  const std::string field(conversation_field(request.endpoint));
  const int tokens = static_cast<int>(prompt_tokens);
  if (tokens == 0) return bad_field(field, " has no tokens");
  const int most = model.max_model_len - (request.sampling.max_tokens == 0 ? 0 : 1);
  if (tokens <= most) return {};
  return ApiError{.message = "the prompt has " + std::to_string(tokens) + " tokens and the context holds " +
                             std::to_string(model.max_model_len) + "; shorten it",
                  .param = field,
                  .code = "context_length_exceeded"};
}

namespace {

// With "none" the model is not told of the tools.
bool offers_tools(const GenerationRequest& request) {
  return request.tool_use.tools && request.tool_use.choice != ToolUse::Choice::none;
}

// Items of earlier responses stand where the input refers to them.
Refused read_referring_input(GenerationRequest& request) {
  const ResponseInput& input = request.response_input;
  if (input.referred.empty()) return {};
  const auto find = [&input](std::string_view id) -> std::optional<JsonValue> {
    for (const JsonDocument& source : input.sources) {
      for (const JsonValue item : source.root().find("output")->elements()) {
        if (item.find("id")->as_string() == id) return item;
      }
    }
    return {};
  };
  return read_input_items("input", *input.value, request.messages, request.response.input_items, find);
}

}  // namespace

// What the answer is held to: a format, calls of tools.
Refused Preparer::compile_rules(PreparedRequest& prepared) const {
  const GenerationRequest& request = prepared.request;
  const bool formatted = request.format.kind != TextFormat::Kind::text;
  // With a call forced there is no answer that could have the format.
  if (formatted && bound_place(request) != BoundCalls::Place::alone) {
    if (Refused refused = compile_format(request.format, prepared)) return refused;
  }
  if (request.tool_use.tools) {
    const CallBinder binder{.tokenizer = text.tokenizer, .model = model, .grammars = grammars};
    if (Refused refused = binder.bind(request, prepared.prompts.front().answer, prepared.calls))
      return refused;
  }
  const bool binds_calls = prepared.calls.place != BoundCalls::Place::none;
  if (!prepared.format && !binds_calls) return {};
  if (prepared.format) prepared.held_to = constraint_kind_name(constraint_kind(request.format.kind));
  if (binds_calls) {
    if (prepared.format) prepared.held_to += ',';
    prepared.held_to += constraint_kind_name(ConstraintKind::tool_calls);
  }
  const Sampling& sampling = request.sampling;
  if (!sampling.allowed_token_ids.empty() || !sampling.bad_words.empty()) {
    return bad_field(sampling.bad_words.empty() ? "allowed_token_ids" : "bad_words",
                     " cannot be had beside " +
                         (formatted ? request.format.field : std::string("calls held to a schema")) +
                         ", which says alone which tokens may come");
  }
  const AnswerRules rules{.format = nullptr, .calls = &prepared.calls};
  for (const PreparedPrompt& prompt : prepared.prompts) {
    const Status status = may_constrain(text.tokenizer, prompt.answer, model.eos_ids, rules);
    if (!status.ok())
      return bad_field(formatted ? request.format.field : "tool_choice", ": " + status.message());
  }
  return {};
}

Refused Preparer::compile_format(const TextFormat& asked, PreparedRequest& prepared) const {
  Result<std::shared_ptr<const Grammar>> grammar = grammars.get(asked);
  if (!grammar.ok()) return bad_field(asked.field, ": " + grammar.status().message());
  prepared.format = *std::move(grammar);
  prepared.vocabulary = grammars.vocabulary(text.tokenizer, model);
  return {};
}

std::variant<ChatPrompt, ApiError> Preparer::render_conversation(GenerationRequest& request,
                                                                 const std::vector<Message>* before) const {
  std::vector<Message> messages;
  if (before != nullptr) messages = *before;
  messages.insert(messages.end(), std::make_move_iterator(request.messages.begin()),
                  std::make_move_iterator(request.messages.end()));
  request.messages.clear();
  if (request.endpoint == Endpoint::responses && request.response.store)
    request.response.conversation = std::make_shared<const std::vector<Message>>(messages);
  if (request.instructions) {
    messages.insert(messages.begin(),
                    Message{.role = Role::system, .content = std::move(*request.instructions)});
    if (request.endpoint == Endpoint::responses) request.instructions = messages.front().content;
  }
  const std::vector<Message> whole = request.response.truncate ? messages : std::vector<Message>();
  auto rendered = render_messages(std::move(messages), request);
  const auto* prompt = std::get_if<ChatPrompt>(&rendered);
  if (prompt == nullptr || !request.response.truncate || !check_room(prompt->ids.size(), request))
    return rendered;
  auto shorter = render_later_turns(whole, request);
  return shorter ? *std::move(shorter) : std::move(rendered);
}

std::variant<ChatPrompt, ApiError> Preparer::render_messages(std::vector<Message> messages,
                                                             const GenerationRequest& request) const {
  return render({.messages = std::move(messages),
                 .tools = offers_tools(request) ? request.tool_use.tools : std::nullopt,
                 .add_generation_prompt = request.add_generation_prompt,
                 .template_variables = request.chat_template_kwargs},
                request);
}

// With room for the answer that is asked for, if any turn leaves that much; else with what the last turn
// leaves.
std::optional<std::variant<ChatPrompt, ApiError>> Preparer::render_later_turns(
    const std::vector<Message>& messages, const GenerationRequest& request) const {
  const std::vector<std::size_t> turns = later_turns(messages);
  if (turns.empty()) return {};
  const int context = model.max_model_len;
  const int answer = std::min(request.sampling.max_tokens.value_or(context / 8), context - 1);
  const std::size_t found = earliest_that_fits(turns, [&](std::size_t turn) {
    const auto rendered = render_messages(from_turn(messages, turn), request);
    const auto* prompt = std::get_if<ChatPrompt>(&rendered);
    return prompt != nullptr && static_cast<int>(prompt->ids.size()) + answer <= context;
  });
  return render_messages(from_turn(messages, turns[std::min(found, turns.size() - 1)]), request);
}

std::variant<ParsedRequest, ApiError> Preparer::parse(Endpoint endpoint, std::string body,
                                                      RequestMemory::Share memory) const {
  if (!memory.hold_to_read(bytes_to_read(body))) return no_room();
  auto parsed = parse_generation_request(endpoint, std::move(body), model.vocabulary);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  ParsedRequest made{.request = std::get<GenerationRequest>(std::move(parsed)), .memory = std::move(memory)};
  if (Refused refused = check_model(made.request.model)) return std::move(*refused);
  text.sampling.fill(made.request.sampling);
  return made;
}

std::variant<PreparedRequest, ApiError> Preparer::prepare(ParsedRequest parsed,
                                                          const std::vector<Message>* before) const {
  PreparedRequest prepared{.request = std::move(parsed.request), .prompts = {}, .stop = {}, .memory = {}};
  RequestMemory::Share memory = std::move(parsed.memory);
  GenerationRequest& request = prepared.request;
  if (Refused refused = read_referring_input(request)) return std::move(*refused);
  if (request.endpoint == Endpoint::messages && !request.sampling.max_tokens)
    return bad_field("max_tokens", " must be there");
  if (request.endpoint != Endpoint::completions) {
    auto rendered = render_conversation(request, before);
    if (auto* error = std::get_if<ApiError>(&rendered)) return std::move(*error);
    ChatPrompt& prompt = std::get<ChatPrompt>(rendered);
    prepared.prompts.push_back(
        {.ids = std::move(prompt.ids), .answer = std::move(prompt.answer), .text = {}});
  }
  if (Refused refused = compile_rules(prepared)) return std::move(*refused);
  request.format = {};
  prepared.limits = TokenLimits::make(request.sampling, text.tokenizer, model.vocabulary, model.eos_ids);
  std::vector<TokenId>().swap(request.sampling.allowed_token_ids);
  std::vector<std::string>().swap(request.sampling.bad_words);
  if (request.prediction) {
    prepared.prediction =
        std::make_shared<const std::vector<TokenId>>(text.tokenizer.encode(*request.prediction));
    request.prediction->clear();
    request.prediction->shrink_to_fit();
  }
  // Nothing looks into the JSON any more.
  request.chat_template_kwargs.reset();
  request.tool_use.tools.reset();
  request.tool_use.own.reset();
  request.response_input = {};
  request.body = {};
  for (Prompt& prompt : request.prompts)
    prepared.prompts.push_back(prepared_prompt(std::move(prompt), request));
  std::vector<Prompt>().swap(request.prompts);
  for (PreparedPrompt& prompt : prepared.prompts) {
    if (request.shows_special_tokens) prompt.answer.hidden = HiddenTokens::shown;
    if (Refused refused = check_room(prompt.ids.size(), request)) return std::move(*refused);
  }
  Result<StopStrings> stop = StopStrings::make(request.sampling.stop);
  if (!stop.ok()) return bad_field("stop", ": " + stop.status().message());
  prepared.stop = std::move(*stop);
  if (!memory.hold_to_run(bytes_to_run(prepared, model))) return no_room();
  prepared.memory = std::move(memory);
  return prepared;
}

std::variant<std::string, ApiError> Preparer::count_tokens(Endpoint endpoint, std::string_view name,
                                                           std::string body,
                                                           RequestMemory::Share memory) const {
  auto parsed = parse(endpoint, std::move(body), std::move(memory));
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  GenerationRequest& request = std::get<ParsedRequest>(parsed).request;
  if (!request.response.previous.empty())
    return bad_field("previous_response_id", " is not counted: send the whole conversation as input");
  if (Refused refused = read_referring_input(request)) return std::move(*refused);
  auto rendered = render_conversation(request, nullptr);
  if (auto* error = std::get_if<ApiError>(&rendered)) return std::move(*error);
  std::string answer;
  JsonWriter json(answer);
  json.begin_object();
  if (!name.empty()) json.member("object", name);
  json.member("input_tokens", std::get<ChatPrompt>(rendered).ids.size()).end_object();
  return answer;
}

std::variant<std::string, ApiError> Preparer::count_message_tokens(std::string body,
                                                                   RequestMemory::Share memory) const {
  return count_tokens(Endpoint::messages, "", std::move(body), std::move(memory));
}

std::variant<std::string, ApiError> Preparer::count_input_tokens(std::string body,
                                                                 RequestMemory::Share memory) const {
  return count_tokens(Endpoint::responses, "response.input_tokens", std::move(body), std::move(memory));
}

namespace {

// {"prompt"} or {"messages"}, which wins.
struct TokenizeRequest {
  std::string model, prompt;
  bool has_prompt = false;
  std::optional<JsonValue> messages;
  ChatRequest chat;
  GenerationRequest asked;  // what of it says how a conversation is rendered
  TextTokens how;
  bool return_token_strs = false;
};

// Every field is checked, also where another one makes it idle.
Refused read_tokenize_request(JsonValue root, TokenizeRequest& request) {
  for (const auto& [name, value] : root.members()) {
    if (value.is_null()) continue;
    const std::string field(name);
    Refused refused;
    if (name == "model") {
      refused = read_text(field, value, request.model);
      if (!refused && request.model.empty()) return bad_field(field, " must not be empty");
    } else if (name == "prompt") {
      refused = read_text(field, value, request.prompt);
      request.has_prompt = true;
    } else if (name == "messages") {
      request.messages = value;
    } else if (name == "add_special_tokens") {
      refused = read_bool(field, value, request.how.add_special);
    } else if (name == "parse_special") {
      refused = read_bool(field, value, request.how.parse_special);
    } else if (name == "return_token_strs") {
      refused = read_bool(field, value, request.return_token_strs);
    } else if (name == "add_generation_prompt") {
      refused = read_bool(field, value, request.chat.add_generation_prompt);
    } else if (name == "continue_final_message") {
      refused = read_bool(field, value, request.asked.continue_final_message);
    } else if (name == "chat_template") {
      refused = read_text(field, value, request.asked.chat_template.emplace());
    } else if (name == "chat_template_kwargs") {
      if (!value.is_object()) return bad_field(field, " must be an object");
      request.chat.template_variables = value;
    }
    if (refused) return refused;
  }
  if (request.asked.continue_final_message && request.chat.add_generation_prompt)
    return bad_field("continue_final_message", " needs add_generation_prompt: false");
  if (!request.messages && !request.has_prompt) return bad_field("prompt", " must be a string");
  return {};
}

}  // namespace

std::variant<std::string, ApiError> Preparer::tokenize(std::string body, RequestMemory::Share memory) const {
  if (!memory.hold_to_read(bytes_to_read(body))) return no_room();
  const Result<JsonDocument> document = JsonDocument::parse(std::move(body));
  if (!document.ok()) return bad_request(document.status().message(), "invalid_json");
  if (!document->root().is_object()) return bad_request("the body must be a JSON object", "invalid_json");
  TokenizeRequest request;
  if (Refused refused = read_tokenize_request(document->root(), request)) return std::move(*refused);
  if (Refused refused = check_model(request.model)) return std::move(*refused);
  std::vector<TokenId> ids;
  if (request.messages) {
    if (Refused refused = read_messages(*request.messages, request.chat.messages)) return std::move(*refused);
    auto rendered = render(std::move(request.chat), request.asked);
    if (auto* error = std::get_if<ApiError>(&rendered)) return std::move(*error);
    ids = std::move(std::get<ChatPrompt>(rendered).ids);
  } else {
    ids = encode(request.prompt, request.how);
  }
  std::string answer;
  JsonWriter json(answer);
  json.begin_object().member("count", ids.size()).key("tokens").begin_array();
  for (const TokenId id : ids) json.value(id);
  json.end_array();
  if (request.return_token_strs) {
    json.key("token_strs").begin_array();
    for (const TokenId id : ids) json.value(text.tokenizer.bytes(id));
    json.end_array();
  }
  json.member("max_model_len", model.max_model_len).end_object();
  return answer;
}

std::variant<std::string, ApiError> Preparer::detokenize(std::string body,
                                                         RequestMemory::Share memory) const {
  if (!memory.hold_to_read(bytes_to_read(body))) return no_room();
  const Result<JsonDocument> document = JsonDocument::parse(std::move(body));
  if (!document.ok()) return bad_request(document.status().message(), "invalid_json");
  const auto tokens = document->root().find("tokens");
  if (!tokens || !tokens->is_array()) return bad_field("tokens", " must be an array of token ids");
  std::vector<TokenId> ids;
  for (const JsonValue value : tokens->elements()) {
    TokenId id = 0;
    if (Refused refused = read_integer("tokens[" + std::to_string(ids.size()) + "]", value, 0,
                                       text.tokenizer.vocabulary_size() - 1, id))
      return std::move(*refused);
    ids.push_back(id);
  }
  std::string answer;
  JsonWriter(answer)
      .begin_object()
      .member("prompt", std::string_view(text.tokenizer.decode(ids)))
      .end_object();
  return answer;
}

}  // namespace nibble::api
