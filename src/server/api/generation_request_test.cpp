#include "server/api/generation_request.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "base/json_writer.h"
#include "server/api/request_fields.h"

namespace nibble::api {
namespace {

constexpr TokenId vocabulary = 1000;

std::variant<GenerationRequest, ApiError> parse(Endpoint endpoint, const std::string& fields) {
  const std::string prompt =
      endpoint == Endpoint::chat ? R"("messages":[{"role":"user","content":"hi"}])" : R"("prompt":"hi")";
  return parse_generation_request(endpoint, "{" + prompt + (fields.empty() ? "" : "," + fields) + "}",
                                  vocabulary);
}

GenerationRequest accepted(Endpoint endpoint, const std::string& fields) {
  auto parsed = parse(endpoint, fields);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << fields << ": " << error->message;
    return {};
  }
  return std::get<GenerationRequest>(std::move(parsed));
}

ApiError refused(Endpoint endpoint, const std::string& fields) {
  auto parsed = parse(endpoint, fields);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  ADD_FAILURE() << fields << " was accepted";
  return {};
}

ApiError refused_body(Endpoint endpoint, const std::string& body) {
  auto parsed = parse_generation_request(endpoint, body, vocabulary);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  ADD_FAILURE() << body << " was accepted";
  return {};
}

TEST(GenerationRequest, EverySamplingFieldIsRead) {
  const GenerationRequest request = accepted(
      Endpoint::chat,
      R"("model":"demo","temperature":0.5,"top_p":0.9,"min_p":0.05,"top_k":-1,"seed":-7,"n":2,"stream":true,
         "stream_options":{"include_usage":true},"max_tokens":5,"max_completion_tokens":9,"min_tokens":2,"presence_penalty":-2,
         "frequency_penalty":2,"repetition_penalty":1.5,"logit_bias":{"7":-100,"9":1.5},"stop":["a","b"],"stop_token_ids":[3,4],
         "ignore_eos":true,"logprobs":true,"top_logprobs":3,"return_token_ids":true,"cache_salt":"s","reasoning_effort":"low",
         "chat_template_kwargs":{"x":1},"include_reasoning":false,"user":"u","store":false,"metadata":{},"service_tier":"auto","verbosity":"low")");
  const Sampling& sampling = request.sampling;
  EXPECT_EQ(request.model, "demo");
  EXPECT_EQ(sampling.temperature, 0.5);
  EXPECT_EQ(sampling.top_p, 0.9);
  EXPECT_EQ(sampling.min_p, 0.05);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.seed, -7);
  EXPECT_EQ(request.n, 2);
  EXPECT_TRUE(request.stream && request.include_usage);
  EXPECT_EQ(sampling.max_tokens, 9);
  EXPECT_EQ(sampling.min_tokens, 2);
  EXPECT_EQ(sampling.presence_penalty, -2);
  EXPECT_EQ(sampling.frequency_penalty, 2);
  EXPECT_EQ(sampling.repetition_penalty, 1.5);
  ASSERT_EQ(sampling.logit_bias.size(), 2u);
  EXPECT_EQ(sampling.logit_bias[1].id, 9);
  EXPECT_EQ(sampling.logit_bias[1].bias, 1.5f);
  EXPECT_EQ(sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<TokenId>{3, 4}));
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.logprobs, 3);
  EXPECT_TRUE(request.return_token_ids);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.reasoning_effort, "low");
  EXPECT_FALSE(request.include_reasoning);
  ASSERT_TRUE(request.chat_template_kwargs);
  EXPECT_EQ(request.chat_template_kwargs->find("x")->as_integer(), 1);  // the view survives the move
  EXPECT_TRUE(request.ignored.empty());
}

TEST(GenerationRequest, ACountBeyondAnyRoomMeansAllOfIt) {
  for (const char* count : {"2147483648", "9223372036854775807", "1e15", "1e18"}) {
    const GenerationRequest request =
        accepted(Endpoint::completions,
                 "\"max_tokens\":" + std::string(count) + ",\"top_k\":" + count + ",\"min_tokens\":" + count);
    EXPECT_EQ(request.sampling.max_tokens, INT32_MAX);
    EXPECT_EQ(request.sampling.top_k, INT32_MAX);
    EXPECT_EQ(request.sampling.min_tokens, INT32_MAX);
  }
}

// The description that others test against must be made of what is checked.
TEST(GenerationRequest, TheServedSchemaHasTheLimitsThatAreChecked) {
  std::string text;
  JsonWriter json(text);
  write_request_schema(Endpoint::chat, json);
  const JsonDocument schema = JsonDocument::parse(text).value();
  const JsonValue properties = *schema.root().find("properties");
  for (const auto& [name, property] : properties.members()) {
    const std::string field(name);
    ASSERT_NE(find_field(Endpoint::chat, name), nullptr);
    for (const char* bound : {"minimum", "maximum"}) {
      const auto limit = property.find(bound);
      if (!limit) continue;
      const double value = limit->as_double(), out = bound[1] == 'i' ? -1 : 1;
      if (std::abs(value) > 1e9 || field == "top_logprobs") continue;
      accepted(Endpoint::chat, "\"" + field + "\":" + std::to_string(static_cast<int>(value)));
      EXPECT_EQ(
          refused(Endpoint::chat, "\"" + field + "\":" + std::to_string(static_cast<int>(value + out))).param,
          field);
    }
  }
  EXPECT_EQ(properties.find("temperature")->find("maximum")->as_double(), 2);
  EXPECT_EQ(properties.find("top_p")->find("exclusiveMinimum")->as_double(), 0);
  EXPECT_FALSE(properties.find("prompt") || properties.find("best_of"));
}

TEST(GenerationRequest, AListOfStopTokensIsNoLongerThanTheVocabulary) {
  const GenerationRequest request = accepted(Endpoint::chat, "\"stop_token_ids\":[5,3,5,3,5]");
  EXPECT_EQ(request.sampling.stop_token_ids, (std::vector<TokenId>{3, 5}));
}

TEST(GenerationRequest, WhatIsLeftOutIsLeftToTheServer) {
  const GenerationRequest request = accepted(Endpoint::chat, "");
  EXPECT_FALSE(request.sampling.temperature || request.sampling.top_p || request.sampling.seed ||
               request.sampling.max_tokens);
  EXPECT_EQ(request.sampling.logprobs, -1);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.stream);
}

// Every field refuses what it is not made of, and names itself.
TEST(GenerationRequest, AWrongTypeNamesItsField) {
  const struct {
    Endpoint endpoint;
    std::vector<std::string> fields;
    std::vector<std::string> wrong;
  } cases[] = {
      {Endpoint::chat,
       {"temperature", "top_p", "min_p", "top_k", "seed", "n", "max_tokens", "max_completion_tokens",
        "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty"},
       {"true", "\"1\"", "[1]", "{}", "-3", "1e300"}},
      {Endpoint::chat, {"top_k", "seed", "n", "max_tokens", "min_tokens"}, {"1.5", "1e19"}},
      {Endpoint::chat, {"stream", "logprobs", "ignore_eos", "return_token_ids"}, {"1", "\"true\"", "[]"}},
      {Endpoint::chat, {"model", "cache_salt", "reasoning_effort"}, {"1", "true", "[]", "{}"}},
      {Endpoint::chat, {"logit_bias", "stream_options", "chat_template_kwargs"}, {"1", "\"a\"", "[1]"}},
      {Endpoint::chat, {"stop"}, {"1", "\"\"", "[\"a\",\"\"]", "[1]", "{}"}},
      {Endpoint::chat, {"stop_token_ids"}, {"1", "[-1]", "[1000]", "[\"a\"]", "[1.5]"}},
      {Endpoint::chat,
       {"logit_bias"},
       {"{\"1000\":1}", "{\"-1\":1}", "{\"a\":1}", "{\"1\":101}", "{\"1\":true}", "{\"01x\":1}"}},
      {Endpoint::completions, {"logprobs", "best_of"}, {"true", "21.5", "\"1\"", "-1", "200"}},
      {Endpoint::completions, {"echo"}, {"1", "\"a\""}},
  };
  for (const auto& [endpoint, fields, wrong] : cases) {
    for (const std::string& field : fields) {
      for (const std::string& value : wrong) {
        if (field == "seed" && value == "-3") continue;
        const ApiError error = refused(endpoint, "\"" + field + "\":" + value);
        EXPECT_EQ(error.status, 400);
        EXPECT_EQ(error.param.substr(0, field.size()), field) << value << ": " << error.message;
      }
    }
  }
}

TEST(GenerationRequest, RangesEndWhereTheyAreSaidTo) {
  for (const char* good : {"\"temperature\":0", "\"temperature\":2", "\"top_p\":1", "\"min_p\":0",
                           "\"n\":128", "\"n\":2.0", "\"presence_penalty\":2", "\"seed\":9223372036854775807",
                           "\"logprobs\":true,\"top_logprobs\":20", "\"max_tokens\":1", "\"top_k\":0"}) {
    accepted(Endpoint::chat, good);
  }
  for (const char* bad :
       {"\"temperature\":2.01", "\"temperature\":-0.01", "\"top_p\":0", "\"top_p\":1.01", "\"min_p\":1.01",
        "\"n\":0", "\"n\":129", "\"presence_penalty\":2.01", "\"logprobs\":true,\"top_logprobs\":21",
        "\"max_tokens\":0", "\"top_k\":-2", "\"repetition_penalty\":0", "\"seed\":9223372036854775808"}) {
    refused(Endpoint::chat, bad);
  }
}

TEST(GenerationRequest, FieldsMustFitTogether) {
  EXPECT_EQ(refused(Endpoint::chat, "\"top_logprobs\":3").param, "top_logprobs");
  EXPECT_EQ(refused(Endpoint::chat, "\"stream_options\":{}").param, "stream_options");
  EXPECT_EQ(refused(Endpoint::completions, "\"best_of\":2").param, "best_of");
  accepted(Endpoint::completions, "\"best_of\":2,\"n\":2");
  EXPECT_EQ(refused(Endpoint::completions, "\"max_tokens\":0").param, "max_tokens");
  accepted(Endpoint::completions, "\"max_tokens\":0,\"echo\":true");
  EXPECT_EQ(refused(Endpoint::chat, "\"min_tokens\":5,\"max_tokens\":4").param, "min_tokens");
  EXPECT_EQ(refused_body(Endpoint::completions, R"({"prompt":["a","b","c"],"n":100})").param, "n");
}

TEST(GenerationRequest, BothNamesOfTheLongestAnswerAreJudgedAlike) {
  for (const Endpoint endpoint : {Endpoint::chat, Endpoint::completions}) {
    for (const char* value : {"1", "5.0", "1e18", "1000000000000000000", "9223372036854775807"}) {
      const auto most = [&](const char* name) {
        return accepted(endpoint, "\"" + std::string(name) + "\":" + value).sampling.max_tokens;
      };
      EXPECT_EQ(most("max_tokens"), most("max_completion_tokens")) << value;
    }
    for (const char* value : {"-1", "1.5", "1e19", "9223372036854775808", "\"5\"", "true", "[]", "-1e18"}) {
      for (const std::string name : {"max_tokens", "max_completion_tokens"})
        EXPECT_EQ(refused(endpoint, "\"" + name + "\":" + value).param, name) << value;
    }
  }
}

TEST(GenerationRequest, ACompletionWithoutALimitHasSixteenTokens) {
  EXPECT_EQ(accepted(Endpoint::completions, "").sampling.max_tokens, 16);
  EXPECT_EQ(accepted(Endpoint::completions, "\"max_tokens\":null").sampling.max_tokens, 16);
  EXPECT_FALSE(accepted(Endpoint::chat, "").sampling.max_tokens.has_value());
}

TEST(GenerationRequest, FieldsWithoutEffectStillHaveTheirTypes) {
  for (const char* field : {"user", "service_tier", "prompt_cache_key", "prompt_cache_retention",
                            "safety_identifier", "request_id"}) {
    accepted(Endpoint::chat, "\"" + std::string(field) + "\":\"a\"");
    for (const char* wrong : {"5", "true", "[]", "{}"})
      EXPECT_EQ(refused(Endpoint::chat, "\"" + std::string(field) + "\":" + wrong).param, field);
  }
  for (const char* wrong :
       {"\"store\":1", "\"metadata\":\"a\"", "\"verbosity\":\"loud\"", "\"parallel_tool_calls\":\"yes\""})
    refused(Endpoint::chat, wrong);
}

TEST(GenerationRequest, AnEmptyModelIsNoModel) {
  for (const Endpoint endpoint : {Endpoint::chat, Endpoint::completions})
    EXPECT_EQ(refused(endpoint, "\"model\":\"\"").param, "model");
}

// What clients of other servers send: none of it may pass unheard where it would have changed the answer.
TEST(GenerationRequest, SamplersOfOtherServersAreNeutralOrRefused) {
  for (const char* neutral :
       {"\"repeat_penalty\":1.0", "\"typical_p\":1", "\"dry_multiplier\":0", "\"xtc_probability\":0.0",
        "\"mirostat\":0", "\"lora\":[]", "\"tfs_z\":1", "\"top_n_sigma\":-1", "\"n_probs\":0",
        "\"dry_base\":1.75,\"dry_sequence_breakers\":[\"a\"]", "\"priority\":0", "\"length_penalty\":1"}) {
    EXPECT_TRUE(accepted(Endpoint::completions, neutral).ignored.empty()) << neutral;
  }
  for (const char* field :
       {"repeat_penalty", "typical_p", "dry_multiplier", "xtc_probability", "mirostat", "lora", "tfs_z",
        "top_n_sigma", "n_probs", "priority", "length_penalty", "n_predict", "max_new_tokens"}) {
    const ApiError error = refused(Endpoint::completions, "\"" + std::string(field) + "\":1.5");
    EXPECT_EQ(error.param, field);
  }
  EXPECT_NE(refused(Endpoint::chat, "\"repeat_penalty\":1.1").message.find("repetition_penalty"),
            std::string::npos);
  for (const char* field : {"\"enable_thinking\":false", "\"thinking\":{\"type\":\"disabled\"}",
                            "\"reasoning\":{\"effort\":\"low\"}"})
    EXPECT_NE(refused(Endpoint::chat, field).message.find("reasoning_effort"), std::string::npos);
}

TEST(GenerationRequest, NullIsAbsentAndTheUnknownIsNamed) {
  const GenerationRequest request = accepted(
      Endpoint::chat,
      R"("temperature":null,"stop":null,"tools":null,"stream_options":null,"frobnicate":1,"prompt":"x")");
  EXPECT_FALSE(request.sampling.temperature);
  EXPECT_EQ(request.ignored, (std::vector<std::string>{"frobnicate", "prompt"}));
}

TEST(GenerationRequest, APredictionIsATextOrPartsOfIt) {
  for (const char* content : {R"("a\nb")", R"([{"type":"text","text":"a\n"},{"type":"text","text":"b"}])"}) {
    const std::string field = R"("prediction":{"type":"content","content":)" + std::string(content) + "}";
    EXPECT_EQ(accepted(Endpoint::chat, field).prediction, "a\nb");
  }
  EXPECT_FALSE(accepted(Endpoint::chat, R"("prediction":null)").prediction);
  for (const auto& [value, param] :
       {std::pair{"5", "prediction.type"},
        {R"({"content":"a"})", "prediction.type"},
        {R"({"type":"text","content":"a"})", "prediction.type"},
        {R"({"type":"content"})", "prediction.content"},
        {R"({"type":"content","content":5})", "prediction.content"},
        {R"({"type":"content","content":[{"type":"image_url"}]})", "prediction.content[0].type"}})
    EXPECT_EQ(refused(Endpoint::chat, "\"prediction\":" + std::string(value)).param, param) << value;
}

TEST(GenerationRequest, WhatIsNotServedIsRefusedByName) {
  for (const char* field : {"functions", "audio"}) {
    EXPECT_EQ(refused(Endpoint::chat, "\"" + std::string(field) + "\":[{\"a\":1}]").param, field);
  }
  EXPECT_EQ(refused(Endpoint::chat, R"("tool_choice":"required")").param, "tool_choice");
  EXPECT_EQ(refused(Endpoint::chat, R"("tool_choice":{"type":"function","function":{"name":"f"}})").param,
            "tool_choice");
  EXPECT_EQ(refused(Endpoint::chat, R"("modalities":["text","audio"])").param, "modalities");
  EXPECT_EQ(refused(Endpoint::chat, R"("web_search_options":{})").param, "web_search_options");
  EXPECT_EQ(refused(Endpoint::completions, R"("suffix":"x")").param, "suffix");
  accepted(Endpoint::chat,
           R"("tools":[],"tool_choice":"none","response_format":{"type":"text"},"modalities":["text"])");
}

TEST(GenerationRequest, AFormatIsReadUnderAllItsNames) {
  using Kind = TextFormat::Kind;
  const std::vector<std::pair<std::string, Kind>> all = {
      {R"("response_format":{"type":"text"})", Kind::text},
      {R"("response_format":{"type":"json_object"})", Kind::json_object},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a","strict":true,"schema":{}}})",
       Kind::json_schema},
      {R"("response_format":{"type":"json_object","schema":{"type":"object"}})", Kind::json_schema},
      {R"("guided_json":{"type":"object"})", Kind::json_schema},
      {R"("guided_json":"{\"type\":\"object\"}")", Kind::json_schema},
      {R"("guided_json":{})", Kind::text},
      {R"("json_schema":{"const":1})", Kind::json_schema},
      {R"("guided_regex":"a+")", Kind::regex},
      {R"("guided_regex":"")", Kind::text},
      {R"("guided_choice":["a","b"])", Kind::choice},
      {R"("guided_grammar":"root ::= \"a\"")", Kind::grammar},
      {R"("grammar":"root ::= \"a\"")", Kind::grammar},
      {R"("structured_outputs":{"regex":"a"})", Kind::regex},
      {R"("structured_outputs":{"json":{"type":"object"}})", Kind::json_schema},
      {R"("structured_outputs":{"choice":["a"],"json":null})", Kind::choice},
      {R"("structured_outputs":{"json_object":true})", Kind::json_object}};
  for (const auto& [fields, kind] : all) {
    for (const Endpoint endpoint : {Endpoint::chat, Endpoint::completions})
      EXPECT_EQ(accepted(endpoint, fields).format.kind, kind) << fields;
  }
}

TEST(GenerationRequest, WhiteSpaceOfAFormatIsLeftOutWhereverThatIsSaid) {
  const std::string compact = R"("structured_outputs":{"disable_any_whitespace":true)";
  const std::vector<std::pair<std::string, JsonWhitespace>> all = {
      {compact + R"(,"json":{"type":"object"}})", JsonWhitespace::compact},
      {compact + R"(},"guided_json":{"type":"object"})", JsonWhitespace::compact},
      {R"("guided_json":{"type":"object"},)" + compact + "}", JsonWhitespace::compact},
      {R"("structured_outputs":{"disable_any_whitespace":false,"json_object":true})",
       JsonWhitespace::flexible},
      {R"("guided_json":{"type":"object"})", JsonWhitespace::flexible}};
  for (const auto& [fields, whitespace] : all)
    EXPECT_EQ(accepted(Endpoint::completions, fields).format.whitespace, whitespace) << fields;
}

TEST(GenerationRequest, ABadFormatIsNamedByItsPlace) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {R"("response_format":"text")", "response_format.type"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})",
       "response_format.json_schema.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":5}})",
       "response_format.json_schema.schema"},
      {R"("guided_json":"{")", "guided_json"},
      {R"("guided_json":5)", "guided_json"},
      {R"("guided_choice":["a",5])", "guided_choice[1]"},
      {R"("guided_regex":5)", "guided_regex"},
      {R"("structured_outputs":{"disable_any_whitespace":1})", "structured_outputs.disable_any_whitespace"},
      {R"("structured_outputs":{"structural_tag":"x"})", "structured_outputs.structural_tag"},
      {R"("guided_regex":"a","guided_choice":["a"])", "guided_choice"},
      {R"("structured_outputs":{"regex":"a","choice":["a"]})", "structured_outputs.choice"},
      {R"("guided_regex":"a","ignore_eos":true)", "ignore_eos"}};
  for (const auto& [fields, place] : all)
    EXPECT_EQ(refused(Endpoint::completions, fields).param, place) << fields;
}

TEST(GenerationRequest, ToolsAreFunctionsOrRefusedByTheirPlace) {
  const auto param = [](const std::string& tool) {
    return refused(Endpoint::chat, "\"tools\":[" + tool + "]").param;
  };
  EXPECT_EQ(param("1"), "tools[0]");
  EXPECT_EQ(param(R"({"a":1})"), "tools[0].type");
  EXPECT_EQ(param(R"({"type":"browser"})"), "tools[0].type");
  EXPECT_EQ(param(R"({"type":"function"})"), "tools[0].function");
  EXPECT_EQ(param(R"({"type":"function","function":{"name":"a b"}})"), "tools[0].function.name");
  EXPECT_EQ(param(R"({"type":"function","function":{"name":"a","parameters":[]}})"),
            "tools[0].function.parameters");
  EXPECT_EQ(param(R"({"type":"function","function":{"name":"a","strict":1}})"), "tools[0].function.strict");
  accepted(Endpoint::chat,
           R"("tools":[{"type":"function","function":{"name":"a.b-c_1","description":null,"parameters":{}}}],
              "tool_choice":"auto","parallel_tool_calls":false)");
  accepted(Endpoint::chat, R"("tools":{})");
}

constexpr std::string_view chat_tools = R"("tools":[{"type":"function","function":{"name":"f","strict":true}},
                                                   {"type":"function","function":{"name":"g"}}])";
constexpr std::string_view responses_tools_field =
    R"("input":"a","tools":[{"type":"function","name":"f","strict":true},{"type":"function","name":"g"}])";
constexpr std::string_view messages_tools_field =
    R"("messages":[{"role":"user","content":"a"}],"max_tokens":1,
       "tools":[{"name":"f","input_schema":{},"strict":true},{"name":"g","input_schema":{}}])";

ToolUse tool_use(Endpoint endpoint, std::string_view tools, const std::string& choice) {
  std::string body = "{" + std::string(tools);
  if (endpoint == Endpoint::chat) body += R"(,"messages":[{"role":"user","content":"a"}])";
  if (!choice.empty()) body += ",\"tool_choice\":" + choice;
  auto parsed = parse_generation_request(endpoint, body + "}", vocabulary);
  if (const auto* error = std::get_if<ApiError>(&parsed)) ADD_FAILURE() << error->message;
  return std::move(std::get<GenerationRequest>(parsed).tool_use);
}

TEST(GenerationRequest, AStrictFunctionIsNotedInEveryEndpointsForm) {
  for (const auto& [endpoint, tools] : {std::pair{Endpoint::chat, chat_tools},
                                        {Endpoint::responses, responses_tools_field},
                                        {Endpoint::messages, messages_tools_field}}) {
    EXPECT_EQ(tool_use(endpoint, tools, "").strict, std::vector<std::string>{"f"});
  }
}

TEST(GenerationRequest, ACallIsAskedForInEveryEndpointsForm) {
  using Choice = ToolUse::Choice;
  struct Case {
    Endpoint endpoint;
    std::string_view tools;
    const char* choice;
    Choice asked;
    std::vector<std::string> allowed;
  };
  const Case cases[] = {
      {Endpoint::chat, chat_tools, R"("required")", Choice::required, {}},
      {Endpoint::chat, chat_tools, R"({"type":"function","function":{"name":"g"}})", Choice::named, {"g"}},
      {Endpoint::chat,
       chat_tools,
       R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"f"}}]}})",
       Choice::required,
       {"f"}},
      {Endpoint::responses, responses_tools_field, R"("required")", Choice::required, {}},
      {Endpoint::responses, responses_tools_field, R"({"type":"function","name":"g"})", Choice::named, {"g"}},
      {Endpoint::responses,
       responses_tools_field,
       R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"g"}]})",
       Choice::automatic,
       {"g"}},
      {Endpoint::messages, messages_tools_field, R"({"type":"any"})", Choice::required, {}},
      {Endpoint::messages, messages_tools_field, R"({"type":"tool","name":"f"})", Choice::named, {"f"}},
  };
  for (const Case& each : cases) {
    const ToolUse use = tool_use(each.endpoint, each.tools, each.choice);
    EXPECT_EQ(use.choice, each.asked) << each.choice;
    EXPECT_EQ(use.allowed, each.allowed) << each.choice;
  }
}

TEST(GenerationRequest, AChoiceAmongToolsThatCannotBeMadeIsRefusedByItsPlace) {
  const std::string tools = std::string(chat_tools) + ",";
  for (const auto& [fields, place] :
       {std::pair{R"("tool_choice":"any")", "tool_choice"},
        {R"("tool_choice":{"type":"custom","custom":{"name":"f"}})", "tool_choice.type"},
        {R"("tool_choice":{"type":"function"})", "tool_choice.function.name"},
        {R"("tool_choice":{"type":"function","function":{"name":"h"}})", "tool_choice"},
        {R"("tool_choice":{"type":"allowed_tools"})", "tool_choice.allowed_tools"},
        {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"none","tools":[]}})",
         "tool_choice.allowed_tools.mode"},
        {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}})",
         "tool_choice.allowed_tools.tools"},
        {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"mcp"}]}})",
         "tool_choice.allowed_tools.tools[0].type"},
        {R"("tool_choice":"required","ignore_eos":true)", "ignore_eos"}})
    EXPECT_EQ(refused(Endpoint::chat, tools + fields).param, place) << fields;
}

TEST(GenerationRequest, CallsAndTheirResultsAreMessages) {
  auto parsed = parse_generation_request(
      Endpoint::chat,
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[
        {"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}},
        {"id":"2","type":"function","function":{"name":"g","arguments":{"y":2}}}]},
        {"role":"tool","tool_call_id":"1","content":"one"},
        {"role":"tool","tool_call_id":"2","content":[{"type":"text","text":"two"}]}]})",
      vocabulary);
  const GenerationRequest& request = std::get<GenerationRequest>(parsed);
  ASSERT_EQ(request.messages.size(), 4u);
  ASSERT_EQ(request.messages[1].tool_calls.size(), 2u);
  EXPECT_EQ(request.messages[1].tool_calls[0].arguments, R"({"x": 1})");
  EXPECT_EQ(request.messages[1].tool_calls[1].arguments, R"({"y":2})");
  EXPECT_EQ(request.messages[2].tool_call_id, "1");
  EXPECT_EQ(request.messages[3].content, "two");
}

TEST(GenerationRequest, MessagesAreTextInEveryForm) {
  auto parsed = parse_generation_request(
      Endpoint::chat,
      R"({"messages":[{"role":"developer","content":"d"},{"role":"user","content":[{"type":"text","text":"a"},
        {"type":"text","text":"b"}],"name":"n"},{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[]},{"role":"user","content":""}]})",
      vocabulary);
  const GenerationRequest& request = std::get<GenerationRequest>(parsed);
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[0].role, Role::developer);
  EXPECT_EQ(request.messages[1].content, "ab");
  EXPECT_EQ(request.messages[1].name, "n");
  EXPECT_FALSE(request.messages[2].content.has_value());
  EXPECT_EQ(request.messages[2].reasoning, "r");
  EXPECT_EQ(request.messages[3].content, "");
}

TEST(GenerationRequest, BadMessagesAreNamedByTheirPlace) {
  const auto param = [](const std::string& messages) {
    return refused_body(Endpoint::chat, "{\"messages\":" + messages + "}").param;
  };
  EXPECT_EQ(param("[]"), "messages");
  EXPECT_EQ(param("\"hi\""), "messages");
  EXPECT_EQ(param("null"), "messages");
  EXPECT_EQ(param("[1]"), "messages[0]");
  EXPECT_EQ(param(R"([{"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role":"wizard","content":"x"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role":"tool","content":"x"}])"), "messages[0].tool_call_id");
  EXPECT_EQ(param(R"([{"role":"user","content":"x","tool_calls":[{}]}])"), "messages[0].tool_calls");
  EXPECT_EQ(param(R"([{"role":"user","content":"x","tool_call_id":"1"}])"), "messages[0].tool_call_id");
  EXPECT_EQ(param(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":"user","content":1}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(param(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0]");
  EXPECT_EQ(param(R"([{"role":"user","content":["x"]}])"), "messages[0].content[0]");
  EXPECT_EQ(
      param(
          R"([{"role":"user","content":"x"},{"role":"assistant","content":"y","tool_calls":[{"id":"1"}]}])"),
      "messages[1].tool_calls[0].function");
}

TEST(GenerationRequest, PromptsComeInFourForms) {
  const auto prompts = [](const std::string& prompt) {
    auto parsed = parse_generation_request(Endpoint::completions, "{\"prompt\":" + prompt + "}", vocabulary);
    return std::get<GenerationRequest>(std::move(parsed)).prompts;
  };
  EXPECT_EQ(prompts(R"("a")"), (std::vector<Prompt>{"a"}));
  EXPECT_EQ(prompts(R"(["a","b"])"), (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[1,2]"), (std::vector<Prompt>{std::vector<TokenId>{1, 2}}));
  EXPECT_EQ(prompts("[[1],[2,3]]"),
            (std::vector<Prompt>{std::vector<TokenId>{1}, std::vector<TokenId>{2, 3}}));
  for (const char* bad : {"1", "true", "{}", "[]", "[\"a\",1]", "[1,\"a\"]", "[[1],\"a\"]", "[1000]", "[-1]",
                          "[[1000]]", "[null]", "[{}]"}) {
    EXPECT_EQ(refused_body(Endpoint::completions, std::string("{\"prompt\":") + bad + "}").param.substr(0, 6),
              "prompt")
        << bad;
  }
}

TEST(GenerationRequest, WhatIsNoJsonObjectHasItsCode) {
  for (const char* body : {"", "[]", "1", "{", "{\"a\":1,\"a\":2}", "\xEF\xBB\xBF{}", "{\"a\":NaN}",
                           "{\"a\":1e400}", "{\"a\":\"\\ud800\"}", "{} x"}) {
    const ApiError error = refused_body(Endpoint::chat, body);
    EXPECT_EQ(error.code, "invalid_json") << body;
    EXPECT_EQ(error.status, 400);
  }
}

TEST(ApiError, HasAllFourKeysAndStaysSmall) {
  const ApiError error{.message = std::string(999, 'a') + "\xC3\xA4", .param = "n"};
  const JsonDocument document = *JsonDocument::parse(error.json());
  const JsonValue body = *document.root().find("error");
  EXPECT_EQ(body.find("message")->as_string(), std::string(999, 'a'));
  EXPECT_EQ(body.find("type")->as_string(), "invalid_request_error");
  EXPECT_EQ(body.find("param")->as_string(), "n");
  EXPECT_TRUE(body.find("code")->is_null());
}

}  // namespace
}  // namespace nibble::api
