#include "app/text_choices.h"

#include <string>

#include "grammar/grammar.h"
#include "text/harmony.h"
#include "text/thinking.h"

namespace nibble {
namespace {

Choice answer_reader(const Tokenizer& tokenizer, const ChatPrompter* chat) {
  Choice row{.field = "answer_reader", .value = "text", .from = "default", .why = "no chat template"};
  if (chat == nullptr) return row;
  row.from = "rule:chat-template";
  row.why = chat->why();
  if (HarmonyTokens::find(tokenizer)) {
    row.value = "harmony";
  } else if (ThinkTokens::find(tokenizer)) {
    row.value = "reasoning, text";
  }
  return row;
}

Choice call_reader(const ChatPrompter* chat) {
  const CallForm form = chat == nullptr ? CallForm::none : chat->call_form();
  if (form == CallForm::none)
    return {.field = "call_reader",
            .value = "none",
            .from = "default",
            .why = "the template has calls in no form that is known, so tools are refused"};
  return {.field = "call_reader",
          .value = std::string(call_form_key(form)),
          .from = "rule:chat-template",
          .why = std::string(call_form_name(form)) + ", by the marks that the template spells"};
}

Choice format_limits() {
  const CompileLimits limits;
  return {.field = "format_limits",
          .value = grouped(limits.max_milliseconds) + " ms",
          .from = "default",
          .why = "of a CPU for a schema or grammar to compile, of at most " +
                 grouped(static_cast<std::int64_t>(limits.max_bytes)) + " bytes, " +
                 std::to_string(limits.max_depth) + " levels and " +
                 grouped(static_cast<std::int64_t>(limits.max_states)) +
                 " states; masks are found while the forward runs"};
}

}  // namespace

std::vector<Choice> text_choices(const Tokenizer& tokenizer, const ChatPrompter* chat) {
  return {answer_reader(tokenizer, chat), call_reader(chat), format_limits()};
}

Choice sampling_choice(const api::SamplingDefaults& sampling, bool is_models) {
  const std::string given = sampling.text();
  Choice row{.field = "sampling", .value = given.empty() ? "temperature 1" : given};
  row.from = is_models ? (given.empty() ? "default" : "rule:generation-config") : "user";
  row.why = !is_models      ? "asked for"
            : given.empty() ? "generation_config.json says nothing else"
                            : "what generation_config.json says, for requests that say nothing";
  return row;
}

}  // namespace nibble
