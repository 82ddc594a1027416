// nibble grammar: what a JSON schema, a grammar or a pattern allows, token by token, with a model's
// vocabulary.
#include "grammar/grammar.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/answer_format.h"
#include "app/cli.h"
#include "app/commands.h"
#include "app/input_text.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "base/thread_time.h"
#include "checkpoint/model_config.h"
#include "checkpoint/model_location.h"
#include "grammar/check.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

struct Options {
  std::string model;
  std::string encoding;
  FormatOptions format;
  std::vector<std::string> instances;
  std::vector<std::string> files;
  bool compact = false;
  bool json = false;
};

struct Model {
  Tokenizer tokenizer;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
};

// The file of a tokenizer alone has no model's end tokens: then none of its tokens ends a text.
Result<Model> load(const Options& options) {
  std::error_code error;
  std::filesystem::path path = options.model;
  std::vector<TokenId> ends;
  std::optional<TokenId> size;
  if (!std::filesystem::is_regular_file(path, error)) {
    NIBBLE_ASSIGN(const ModelLocation location,
                  locate_model(options.model, LocationEnvironment::of_this_process()));
    path = location.folder;
    NIBBLE_ASSIGN(const ModelConfig config, read_model_config(path));
    ends = config.eos_token_ids;
    size = static_cast<TokenId>(config.vocab_size);
  }
  NIBBLE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(path, options.encoding));
  auto vocabulary = GrammarVocabulary::make(tokenizer, ends, size.value_or(tokenizer.vocabulary_size()));
  return Model{.tokenizer = std::move(tokenizer), .vocabulary = std::move(vocabulary)};
}

class Stopwatch {
 public:
  double microseconds() const { return thread_cpu_us() - begin_; }

 private:
  double begin_ = thread_cpu_us();
};

struct MaskTimes {
  double average = 0, p99 = 0, most = 0;
  explicit MaskTimes(std::vector<double> each) {
    if (each.empty()) return;
    std::sort(each.begin(), each.end());
    average = std::accumulate(each.begin(), each.end(), 0.0) / static_cast<double>(each.size());
    p99 = each[(each.size() - 1) * 99 / 100];
    most = each.back();
  }
};

Status print(std::string_view text, Console& console) {
  if (std::fwrite(text.data(), 1, text.size(), console.out) == text.size()) return {};
  return io_error("the output cannot be written");
}

SchemaOptions schema_options(const Options& options) {
  return {.whitespace = options.compact ? JsonWhitespace::compact : JsonWhitespace::flexible};
}

struct Form {
  std::string_view name;
  std::string text;
};

// A JSON value in the two forms that people write; any other text as it is.
std::vector<Form> forms_of(const std::string& instance, const Options& options) {
  if (options.format.has_schema) {
    const Result<JsonDocument> value = JsonDocument::parse(instance);
    if (value.ok()) {
      std::vector<Form> forms{{"compact", compact_json(value->root())}};
      if (!options.compact) forms.push_back({"indented", indented_json(value->root())});
      return forms;
    }
  }
  return {{"text", instance}};
}

void write_check(JsonWriter& json, const std::string& instance, const Form& form, const TextCheck& check) {
  const MaskTimes times(check.mask_us);
  json.begin_object();
  json.member("instance", std::string_view(instance));
  json.member("form", form.name);
  json.member("taken", check.taken);
  json.member("tokens", check.tokens);
  if (!check.taken) {
    json.member("refused_at", check.refused_at);
    json.member("refused", std::string_view(check.refused));
    json.member("allowed", std::string_view(check.allowed));
    json.member("may_end", check.may_end);
  }
  json.member("mask_us_avg", times.average);
  json.member("mask_us_max", times.most);
  json.end_object();
}

std::string sentence(const std::string& instance, const Form& form, const TextCheck& check) {
  std::string out = quote(instance, 60) + " (" + std::string(form.name) + ", " +
                    std::to_string(check.tokens) + " tokens): ";
  if (check.taken) return out + "taken\n";
  out += check.refused_at == check.tokens
             ? "ends too early"
             : "refused at token " + std::to_string(check.refused_at) + " " + quote(check.refused, 40);
  out += "; allowed there: " + (check.allowed.empty() ? std::string("nothing more") : escape(check.allowed));
  if (check.may_end) out += ", or the end";
  return out + "\n";
}

Status check_instances(const Options& options, const Model& model, Console& console) {
  const Stopwatch watch;
  NIBBLE_ASSIGN(const auto grammar, compile_format(options.format, schema_options(options), console));
  const double compile_us = watch.microseconds();
  std::string out;
  JsonWriter json(out);
  if (options.json) json.begin_object().member("compile_us", compile_us).key("checks").begin_array();
  std::string text = "compiled in " + std::to_string(static_cast<long>(compile_us)) + " us\n";
  std::vector<double> masks;
  for (const std::string& instance : options.instances) {
    for (const Form& form : forms_of(instance, options)) {
      const TextCheck check = check_text(grammar, model.vocabulary, model.tokenizer, form.text);
      masks.insert(masks.end(), check.mask_us.begin(), check.mask_us.end());
      if (options.json) {
        write_check(json, instance, form, check);
      } else {
        text += sentence(instance, form, check);
      }
    }
  }
  if (options.json) {
    json.end_array().end_object();
    return print(out + "\n", console);
  }
  const MaskTimes times(masks);
  if (!masks.empty())
    text += "masks: " + std::to_string(times.average) + " us on average, " + std::to_string(times.most) +
            " us at most\n";
  return print(text, console);
}

// One of MaskBench's files: {"schema": ..., "tests": [{"data": ..., "valid": ...}]}.
Result<std::string> mask_bench(const std::string& file, const Options& options, const Model& model,
                               Console& console) {
  NIBBLE_ASSIGN(std::string text, read_input_text(file, console));
  const Result<JsonDocument> document = JsonDocument::parse(std::move(text));
  if (!document.ok()) return invalid_argument(quote(file) + ": " + document.status().message());
  const auto schema = document->root().find("schema");
  if (!schema) return invalid_argument(quote(file) + " has no schema");
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("file", std::string_view(file));
  const Stopwatch watch;
  const auto grammar = compile_json_schema(*schema, schema_options(options));
  if (grammar.ok()) start(*grammar, model.vocabulary);  // the first answer's preparation counts with it
  const double compile_us = watch.microseconds();
  json.member("compiled", grammar.ok());
  if (!grammar.ok()) json.member("refused_keyword", std::string_view(grammar.status().message()));
  json.member("compile_us", compile_us);
  std::size_t tests = 0, right = 0, wrong_accepts = 0, wrong_refusals = 0, tokens = 0;
  std::vector<double> masks;
  const auto list = document->root().find("tests");
  if (list && list->is_array()) {
    for (const JsonValue test : list->elements()) {
      const auto data = test.find("data");
      const auto valid = test.find("valid");
      if (!data || !valid || !valid->is_bool())
        return invalid_argument(quote(file) + " has a test without data or valid");
      ++tests;
      if (!grammar.ok()) continue;
      bool all = true, any = false;
      for (const std::string& form : {compact_json(*data), indented_json(*data)}) {
        const TextCheck check = check_text(*grammar, model.vocabulary, model.tokenizer, form);
        all &= check.taken;
        any |= check.taken;
        tokens += check.tokens;
        masks.insert(masks.end(), check.mask_us.begin(), check.mask_us.end());
        if (options.compact) break;
      }
      const bool accept = valid->as_bool();
      right += accept ? all : !any;
      wrong_refusals += accept && !all;
      wrong_accepts += !accept && any;
    }
  }
  if (options.json) {
    json.key("masks").begin_array();
    for (const double each : masks) json.value(each);
    json.end_array();
  }
  const MaskTimes times(std::move(masks));
  json.member("tests", tests).member("right", right).member("wrong_accepts", wrong_accepts);
  json.member("wrong_refusals", wrong_refusals).member("tokens", tokens).member("mask_us_avg", times.average);
  json.member("mask_us_p99", times.p99).member("mask_us_max", times.most).end_object();
  return out + "\n";
}

Status run(const Options& options, Console& console) {
  const int given = options.format.given() + !options.files.empty();
  if (given != 1)
    return invalid_argument("give one of --json-schema, --grammar, --lark, --regex and --maskbench");
  if (!options.files.empty() && !options.instances.empty())
    return invalid_argument("--maskbench has its instances in its files; leave out --check");
  NIBBLE_ASSIGN(const Model model, load(options));
  for (const std::string& file : options.files) {
    NIBBLE_ASSIGN(const std::string line, mask_bench(file, options, model, console));
    NIBBLE_RETURN_IF_ERROR(print(line, console));
  }
  if (!options.files.empty()) return {};
  return check_instances(options, model, console);
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "MODEL",
                       .help = "a model, a tokenizer.json or a .tiktoken rank file",
                       .target = &options->model}};
  line.options = format_option_specs(options->format);
  line.add({
      {.name = "--lark",
       .value = "FILE",
       .help = "a grammar in the manner of Lark",
       .set = noting(options->format.has_lark, string_value(options->format.lark))},
      {.name = "--check",
       .value = "INSTANCE...",
       .help = "texts or JSON values to follow through it",
       .set = strings_value(options->instances)},
      {.name = "--maskbench",
       .value = "FILE...",
       .help = "files of MaskBench; a JSON line for each",
       .set = strings_value(options->files)},
      {.name = "--compact",
       .help = "no blanks between the parts of JSON",
       .set = switch_value(options->compact)},
      {.name = "--encoding",
       .value = "NAME",
       .help = "o200k_base or o200k_harmony, for a .tiktoken file",
       .set = string_value(options->encoding)},
      {.name = "--json",
       .help = "print one JSON object; for --maskbench with each mask's time",
       .set = switch_value(options->json)},
  });
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command grammar_command{.name = "grammar",
                              .summary = "what a schema, a grammar or a pattern allows, token by token",
                              .example = "nibble grammar demo --regex \"[a-c]+\" --check abc abd",
                              .declare = declare};

}  // namespace nibble
