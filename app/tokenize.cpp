// nibble tokenize: text to ids and back.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/cli.h"
#include "app/commands.h"
#include "app/input_text.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/quote.h"
#include "checkpoint/model_location.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

struct Options {
  std::string tokenizer;
  std::string encoding;
  std::string text;
  std::string file;
  std::string decode;
  bool has_text = false;
  bool has_file = false;
  bool has_decode = false;
  bool special = false;
  bool json = false;
  bool json_lines = false;
};

Result<Tokenizer> load_tokenizer(const Options& options) {
  std::error_code error;
  if (std::filesystem::exists(options.tokenizer, error))
    return Tokenizer::load(options.tokenizer, options.encoding);
  NIBBLE_ASSIGN(const ModelLocation location,
                locate_model(options.tokenizer, LocationEnvironment::of_this_process()));
  return Tokenizer::load(location.folder, options.encoding);
}

// "1,2,3", with blanks allowed around a comma.
Result<std::vector<TokenId>> parse_ids(std::string_view list, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  const auto trimmed = [](std::string_view text) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    return text;
  };
  if (trimmed(list).empty()) return ids;
  while (true) {
    const std::size_t comma = list.find(',');
    const std::string_view item = trimmed(list.substr(0, comma));
    TokenId id = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (error != std::errc() || end != item.data() + item.size() || tokenizer.bytes(id).empty()) {
      return invalid_argument("--decode: " + quote(item) + " is no token id; give ids from 0 to " +
                              std::to_string(tokenizer.vocabulary_size() - 1) + " such as 1,2,3");
    }
    ids.push_back(id);
    if (comma == std::string_view::npos) return ids;
    list.remove_prefix(comma + 1);
  }
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text, const Options& options) {
  return options.special ? tokenizer.encode_trusted(text) : tokenizer.encode(text);
}

void write_ids(JsonWriter& json, std::span<const TokenId> ids) {
  json.key("ids").begin_array();
  for (const TokenId id : ids) json.value(id);
  json.end_array();
}

Status print(std::string_view text, Console& console) {
  if (std::fwrite(text.data(), 1, text.size(), console.out) == text.size()) return {};
  return io_error("the output cannot be written");
}

// Ids of a text, or with --decode the text of ids.
Status print_one(const Tokenizer& tokenizer, std::span<const TokenId> ids, const Options& options,
                 Console& console) {
  std::string out;
  if (options.json) {
    JsonWriter json(out);
    json.begin_object();
    write_ids(json, ids);
    json.key("pieces").begin_array();
    for (const TokenId id : ids) json.value(tokenizer.bytes(id));
    json.end_array();
    if (options.has_decode) json.member("text", std::string_view(tokenizer.decode(ids)));
    json.end_object();
  } else if (options.has_decode) {
    out = tokenizer.decode(ids);
  } else {
    for (const TokenId id : ids) out.append(out.empty() ? "" : " ").append(std::to_string(id));
  }
  out.push_back('\n');
  return print(out, console);
}

// One JSON string a line in, {"ids":[...]} a line out: many texts for one start of the program.
Status run_json_lines(const Tokenizer& tokenizer, std::string_view input, const Options& options,
                      Console& console) {
  std::string out;
  for (std::size_t number = 1; !input.empty(); ++number) {
    const std::size_t end = std::min(input.find('\n'), input.size());
    const std::string_view line = input.substr(0, end);
    input.remove_prefix(std::min(end + 1, input.size()));
    const Result<JsonDocument> document = JsonDocument::parse(std::string(line));
    const std::string where = "line " + std::to_string(number);
    if (!document.ok()) return invalid_argument(where + ": " + document.status().message());
    if (!document->root().is_string())
      return invalid_argument(where + " is no JSON string such as \"a text\"");
    JsonWriter json(out);
    json.begin_object();
    write_ids(json, encode(tokenizer, document->root().as_string(), options));
    json.end_object();
    out.push_back('\n');
    if (out.size() > (1u << 16)) {
      NIBBLE_RETURN_IF_ERROR(print(out, console));
      out.clear();
    }
  }
  return print(out, console);
}

Status run(const Options& options, Console& console) {
  if (options.has_text + options.has_file + options.has_decode > 1) {
    return invalid_argument("--text, --file and --decode exclude each other; give one of them or none");
  }
  if (options.json_lines && (options.has_text || options.has_decode)) {
    return invalid_argument(
        "--json-lines reads texts from --file or standard input; leave out --text and --decode");
  }
  NIBBLE_ASSIGN(const Tokenizer tokenizer, load_tokenizer(options));
  if (options.has_decode) {
    NIBBLE_ASSIGN(const std::vector<TokenId> ids, parse_ids(options.decode, tokenizer));
    return print_one(tokenizer, ids, options, console);
  }
  std::string text = options.text;
  if (options.has_file) {
    NIBBLE_ASSIGN(text, read_input_text(options.file, console));
  } else if (!options.has_text) {
    NIBBLE_ASSIGN(text, read_input_text("-", console));
  }
  if (options.json_lines) return run_json_lines(tokenizer, text, options, console);
  return print_one(tokenizer, encode(tokenizer, text, options), options, console);
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "TOKENIZER",
                       .help = "a model, a tokenizer.json or a .tiktoken rank file",
                       .target = &options->tokenizer}};
  line.options = {
      {.name = "--text",
       .value = "TEXT",
       .help = "the text; without it and --file, standard input is read",
       .set = noting(options->has_text, string_value(options->text))},
      {.name = "--file",
       .value = "FILE",
       .help = "a file that holds the text",
       .set = noting(options->has_file, string_value(options->file))},
      {.name = "--decode",
       .value = "IDS",
       .help = "ids such as 1,2,3 to turn into text",
       .set = noting(options->has_decode, string_value(options->decode))},
      {.name = "--special",
       .help = "control tokens spelled in the text count as such",
       .set = switch_value(options->special)},
      {.name = "--encoding",
       .value = "NAME",
       .help = "o200k_base or o200k_harmony, for a .tiktoken file",
       .set = string_value(options->encoding)},
      {.name = "--json",
       .help = "print {\"ids\":[...],\"pieces\":[...]}",
       .set = switch_value(options->json)},
      {.name = "--json-lines",
       .help = "many texts: a JSON string a line in, {\"ids\":[...]} a line out",
       .set = switch_value(options->json_lines)},
  };
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

const Command tokenize_command{.name = "tokenize",
                               .summary = "text to ids and back",
                               .example = "nibble tokenize demo --text \"Once upon a time\" --json",
                               .declare = declare};

}  // namespace nibble
