// tokenizer.json, the file of the Hugging Face tokenizers library: byte-level BPE models. What the file says
// is honoured or refused by name; ignored, because it does not concern the ids of a text, are "truncation"
// and "padding" (the engine has its own limits), "dropout" of 0, and "unk_token" (every byte has a token).
// The control tokens that the "post_processor" puts around a single text are kept beside it, for whoever
// wants them: chat templates spell them out. An added token is looked for in the text as it is spelled,
// before normalization, whether or not it is "normalized": so no text around it can undo it.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/quote.h"
#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/tokenizer_parts.h"

namespace nibble {
namespace {

Status refuse(std::string message) { return broken_model(std::move(message)); }

// A member that is there and not null.
std::optional<JsonValue> member(JsonValue object, std::string_view key) {
  std::optional<JsonValue> value = object.find(key);
  if (value && value->is_null()) value.reset();
  return value;
}

Status wrong_type(std::string_view where, std::string_view key, JsonValue value, std::string_view expected) {
  return refuse(std::string(where) + "." + std::string(key) + " is " +
                std::string(json_type_name(value.type())) + ", not " + std::string(expected));
}

Result<bool> read_bool(JsonValue object, std::string_view where, std::string_view key, bool fallback) {
  const std::optional<JsonValue> value = member(object, key);
  if (!value) return fallback;
  if (!value->is_bool()) return wrong_type(where, key, *value, "a boolean");
  return value->as_bool();
}

// Empty if absent.
Result<std::string_view> read_string(JsonValue object, std::string_view where, std::string_view key) {
  const std::optional<JsonValue> value = member(object, key);
  if (!value) return std::string_view();
  if (!value->is_string()) return wrong_type(where, key, *value, "a string");
  return value->as_string();
}

Result<std::string_view> read_type(JsonValue object, std::string_view where) {
  if (!object.is_object()) {
    return refuse(std::string(where) + " is " + std::string(json_type_name(object.type())) +
                  ", not an object");
  }
  NIBBLE_ASSIGN(const std::string_view type, read_string(object, where, "type"));
  if (type.empty()) return refuse(std::string(where) + " has no type");
  return type;
}

// The member `key`, an array.
Result<JsonValue> read_array(JsonValue object, std::string_view where, std::string_view key) {
  const std::optional<JsonValue> value = member(object, key);
  if (!value) return refuse(std::string(where) + " has no " + std::string(key));
  if (!value->is_array()) return wrong_type(where, key, *value, "an array");
  return *value;
}

// --- normalizer ---

Status read_normalizer(JsonValue normalizer, int depth, TokenizerParts& parts) {
  NIBBLE_ASSIGN(const std::string_view type, read_type(normalizer, "normalizer"));
  if (type == "NFC") {
    parts.normalize_nfc = true;
    return {};
  }
  if (type == "Sequence" && depth < 4) {
    NIBBLE_ASSIGN(const JsonValue steps, read_array(normalizer, "normalizer", "normalizers"));
    for (const JsonValue step : steps.elements())
      NIBBLE_RETURN_IF_ERROR(read_normalizer(step, depth + 1, parts));
    return {};
  }
  return refuse("the normalizer " + quote(type) + " is not supported; NFC and a Sequence of it are");
}

// --- pre_tokenizer ---

struct PreTokenizerReader {
  std::vector<SplitStep> steps;
  bool byte_level = false;
  bool prefix_space = false;

  Status read(JsonValue value, int depth);
  Status read_split(JsonValue value);
  Status read_digits(JsonValue value);
  Status read_byte_level(JsonValue value);
};

Status PreTokenizerReader::read(JsonValue value, int depth) {
  NIBBLE_ASSIGN(const std::string_view type, read_type(value, "pre_tokenizer"));
  if (type == "Sequence" && depth < 4) {
    NIBBLE_ASSIGN(const JsonValue all, read_array(value, "pre_tokenizer", "pretokenizers"));
    for (const JsonValue step : all.elements()) NIBBLE_RETURN_IF_ERROR(read(step, depth + 1));
    return {};
  }
  if (byte_level)
    return refuse("the pre_tokenizer goes on behind its ByteLevel step, which must be the last");
  if (steps.size() == PreTokenizer::kMaxSteps) {
    return refuse("the pre_tokenizer has more than " + std::to_string(PreTokenizer::kMaxSteps) + " steps");
  }
  if (type == "Split") return read_split(value);
  if (type == "Digits") return read_digits(value);
  if (type == "ByteLevel") return read_byte_level(value);
  return refuse("the pre_tokenizer " + quote(type) +
                " is not supported; Sequence, Split, Digits and ByteLevel are");
}

Status PreTokenizerReader::read_split(JsonValue value) {
  NIBBLE_ASSIGN(const std::string_view name, read_string(value, "Split", "behavior"));
  constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous},
  };
  const auto* behavior = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                      [name](const auto& known) { return known.first == name; });
  if (behavior == std::end(kBehaviors)) return refuse("Split has the unknown behavior " + quote(name));
  NIBBLE_ASSIGN(const bool invert, read_bool(value, "Split", "invert", false));
  const std::optional<JsonValue> pattern = member(value, "pattern");
  if (!pattern || !pattern->is_object() || pattern->size() != 1) {
    return refuse("Split.pattern is not {\"Regex\": ...} or {\"String\": ...}");
  }
  NIBBLE_ASSIGN(const std::string_view regex, read_string(*pattern, "Split.pattern", "Regex"));
  if (!regex.empty()) {
    NIBBLE_ASSIGN(SplitStep step, SplitStep::pattern(regex, behavior->second, invert));
    steps.push_back(std::move(step));
    return {};
  }
  NIBBLE_ASSIGN(const std::string_view literal, read_string(*pattern, "Split.pattern", "String"));
  if (literal.empty()) return refuse("Split.pattern is neither a Regex nor a String of at least one byte");
  steps.push_back(SplitStep::literal(std::string(literal), behavior->second, invert));
  return {};
}

Status PreTokenizerReader::read_digits(JsonValue value) {
  NIBBLE_ASSIGN(const bool individual, read_bool(value, "Digits", "individual_digits", false));
  const std::string_view pattern = individual ? kOneNumberPattern : kNumbersPattern;
  NIBBLE_ASSIGN(SplitStep step, SplitStep::pattern(pattern, SplitBehavior::isolated, false));
  steps.push_back(std::move(step));
  return {};
}

Status PreTokenizerReader::read_byte_level(JsonValue value) {
  NIBBLE_ASSIGN(prefix_space, read_bool(value, "ByteLevel", "add_prefix_space", true));
  NIBBLE_ASSIGN(const bool use_regex, read_bool(value, "ByteLevel", "use_regex", true));
  if (prefix_space && !steps.empty()) {
    return refuse("ByteLevel has add_prefix_space behind another pre_tokenizer, which is not supported");
  }
  byte_level = true;
  if (!use_regex) return {};
  NIBBLE_ASSIGN(SplitStep step, SplitStep::pattern(kGpt2Pattern, SplitBehavior::isolated, false));
  steps.push_back(std::move(step));
  return {};
}

// --- decoder and post_processor: only what they would change is looked at ---

Status check_decoder(JsonValue decoder, int depth) {
  NIBBLE_ASSIGN(const std::string_view type, read_type(decoder, "decoder"));
  if (type == "ByteLevel") return {};
  if (type == "Sequence" && depth < 4) {
    NIBBLE_ASSIGN(const JsonValue steps, read_array(decoder, "decoder", "decoders"));
    if (steps.size() == 0) return refuse("the decoder is an empty Sequence; ByteLevel is supported");
    for (const JsonValue step : steps.elements()) NIBBLE_RETURN_IF_ERROR(check_decoder(step, depth + 1));
    return {};
  }
  return refuse("the decoder " + quote(type) + " is not supported; ByteLevel is");
}

// {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids":
// [1]}}}
Status read_template_processing(JsonValue processor, TokenizerParts& parts) {
  NIBBLE_ASSIGN(const JsonValue single, read_array(processor, "TemplateProcessing", "single"));
  const std::optional<JsonValue> known = member(processor, "special_tokens");
  std::vector<TokenId>* around = &parts.before_text;
  for (const JsonValue piece : single.elements()) {
    if (piece.find("Sequence")) {
      if (around == &parts.behind_text) return refuse("TemplateProcessing.single has the text twice");
      around = &parts.behind_text;
      continue;
    }
    const std::optional<JsonValue> special = piece.find("SpecialToken");
    const std::optional<JsonValue> name = special ? special->find("id") : std::nullopt;
    if (!name || !name->is_string())
      return refuse("TemplateProcessing.single has a piece that is neither the text nor a special token");
    const std::optional<JsonValue> token = known ? known->find(name->as_string()) : std::nullopt;
    const std::optional<JsonValue> ids = token ? token->find("ids") : std::nullopt;
    if (!ids || !ids->is_array())
      return refuse("TemplateProcessing.special_tokens gives " + quote(name->as_string()) + " no ids");
    for (const JsonValue id : ids->elements()) {
      if (!id.is_integer() || id.as_integer() < 0 || id.as_integer() > INT32_MAX)
        return refuse("TemplateProcessing.special_tokens gives " + quote(name->as_string()) +
                      " an id that is none");
      around->push_back(static_cast<TokenId>(id.as_integer()));
    }
  }
  return {};
}

Status read_post_processor(JsonValue post_processor, int depth, TokenizerParts& parts) {
  NIBBLE_ASSIGN(const std::string_view type, read_type(post_processor, "post_processor"));
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return read_template_processing(post_processor, parts);
  if (type == "Sequence" && depth < 4) {
    NIBBLE_ASSIGN(const JsonValue steps, read_array(post_processor, "post_processor", "processors"));
    for (const JsonValue step : steps.elements())
      NIBBLE_RETURN_IF_ERROR(read_post_processor(step, depth + 1, parts));
    return {};
  }
  return refuse("the post_processor " + quote(type) +
                " is not supported; ByteLevel, TemplateProcessing and a Sequence of them are");
}

// --- added_tokens, model ---

class ModelReader {
 public:
  // `json_bytes` bounds the bytes of all tokens.
  ModelReader(TokenizerParts& parts, std::size_t json_bytes) : parts_(parts) { bytes_.reserve(json_bytes); }

  Status read(JsonValue root) {
    if (const std::optional<JsonValue> added = member(root, "added_tokens")) {
      if (!added->is_array()) return refuse("added_tokens is no array");
      for (const JsonValue token : added->elements()) NIBBLE_RETURN_IF_ERROR(read_added(token));
    }
    const std::optional<JsonValue> model = member(root, "model");
    if (!model) return refuse("it has no model");
    NIBBLE_RETURN_IF_ERROR(check_model(*model));
    NIBBLE_RETURN_IF_ERROR(read_vocabulary(*model));
    NIBBLE_RETURN_IF_ERROR(read_merges(*model));
    return check_spellings();
  }

 private:
  Status read_added(JsonValue token);
  Status check_model(JsonValue model);
  Status read_vocabulary(JsonValue model);
  Status read_merges(JsonValue model);
  Status read_merge(JsonValue merge, std::size_t index);
  Status check_spellings() const;

  const ControlToken* control_of(std::int64_t id) const {
    const auto at =
        std::lower_bound(parts_.controls.begin(), parts_.controls.end(), id,
                         [](const ControlToken& control, std::int64_t value) { return control.id < value; });
    return at != parts_.controls.end() && at->id == id ? &*at : nullptr;
  }

  TokenizerParts& parts_;
  std::string bytes_;  // of all tokens; never reallocated, since views point into it
  std::string joint_;  // scratch of read_merge
  VocabularyBuilder builder_;
  std::vector<BpeMerge> merges_;
};

Status ModelReader::read_added(JsonValue token) {
  if (!token.is_object()) return refuse("an added token is no object");
  const std::optional<JsonValue> id = token.find("id");
  if (!id || !id->is_integer()) return refuse("an added token has no integer id");
  NIBBLE_ASSIGN(const std::string_view content, read_string(token, "an added token", "content"));
  if (content.empty()) return refuse("added token " + std::to_string(id->as_integer()) + " has no content");
  for (const std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
    NIBBLE_ASSIGN(const bool set, read_bool(token, "an added token", flag, false));
    if (set) {
      return refuse("added token " + quote(content) + " has " + std::string(flag) +
                    ", which is not supported: control tokens are matched as they are spelled");
    }
  }
  if (Status status = builder_.add(id->as_integer(), content); !status.ok()) {
    return status.with_context("added token " + quote(content));
  }
  NIBBLE_ASSIGN(const bool special, read_bool(token, "an added token", "special", true));
  parts_.controls.push_back({static_cast<TokenId>(id->as_integer()), std::string(content), special});
  return {};
}

Status ModelReader::check_model(JsonValue model) {
  NIBBLE_ASSIGN(const std::string_view type, read_type(model, "model"));
  if (type != "BPE") return refuse("model.type is " + quote(type) + "; BPE is supported");
  NIBBLE_ASSIGN(const bool byte_fallback, read_bool(model, "model", "byte_fallback", false));
  if (byte_fallback) return refuse("model.byte_fallback is on, which is not supported; byte-level BPE is");
  for (const std::string_view affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    NIBBLE_ASSIGN(const std::string_view text, read_string(model, "model", affix));
    if (!text.empty())
      return refuse("model." + std::string(affix) + " is " + quote(text) + ", which is not supported");
  }
  if (const std::optional<JsonValue> dropout = member(model, "dropout")) {
    if (!dropout->is_number()) return wrong_type("model", "dropout", *dropout, "a number");
    if (dropout->as_double() != 0) return refuse("model.dropout is on: it is for training");
  }
  NIBBLE_ASSIGN(const bool ignore_merges, read_bool(model, "model", "ignore_merges", false));
  parts_.bpe.whole_piece = ignore_merges ? BpeModel::WholePiece::always : BpeModel::WholePiece::when_reached;
  return {};
}

Status ModelReader::read_vocabulary(JsonValue model) {
  const std::optional<JsonValue> vocab = member(model, "vocab");
  if (!vocab || !vocab->is_object()) return refuse("model.vocab is no object");
  std::sort(parts_.controls.begin(), parts_.controls.end(),
            [](const ControlToken& a, const ControlToken& b) { return a.id < b.id; });
  for (const auto& [token, id] : vocab->members()) {
    if (!id.is_integer()) return refuse("model.vocab gives " + quote(token) + " no integer id");
    if (const ControlToken* control = control_of(id.as_integer())) {
      if (control->spelling == token) continue;
      return refuse("token id " + std::to_string(control->id) + " is " + quote(control->spelling) +
                    " in added_tokens but " + quote(token) + " in model.vocab");
    }
    const std::size_t begin = bytes_.size();
    // A token outside the byte-level alphabet cannot come of text; it decodes to what it is spelled like.
    const bool plain = append_byte_level(token, bytes_);
    if (!plain) bytes_.append(token);
    if (Status status = builder_.add(id.as_integer(), std::string_view(bytes_).substr(begin)); !status.ok()) {
      return status.with_context("model.vocab, token " + quote(token));
    }
    if (plain) parts_.bpe.plain.push_back(static_cast<TokenId>(id.as_integer()));
  }
  NIBBLE_ASSIGN(parts_.vocabulary, builder_.finish());
  parts_.bpe.finder = TokenFinder(*parts_.vocabulary, parts_.bpe.plain);
  NIBBLE_ASSIGN(parts_.bpe.bytes, byte_tokens(parts_.bpe.finder));
  return {};
}

Status ModelReader::read_merges(JsonValue model) {
  NIBBLE_ASSIGN(const JsonValue merges, read_array(model, "model", "merges"));
  if (merges.size() >= PairRanks::kMaxMerges) {
    return refuse("model.merges has " + std::to_string(merges.size()) + " entries, more than " +
                  std::to_string(PairRanks::kMaxMerges - 1));
  }
  merges_.reserve(merges.size());
  parts_.bpe.merges.results.reserve(merges.size());
  std::size_t index = 0;
  for (const JsonValue merge : merges.elements()) NIBBLE_RETURN_IF_ERROR(read_merge(merge, index++));
  parts_.bpe.merges.ranks = PairRanks(merges_);
  if (parts_.bpe.merges.ranks.size() == merges_.size()) return {};
  return refuse("model.merges has the same pair twice");
}

Status ModelReader::check_spellings() const {
  std::vector<const ControlToken*> sorted;
  for (const ControlToken& control : parts_.controls) sorted.push_back(&control);
  std::sort(sorted.begin(), sorted.end(), [](const ControlToken* a, const ControlToken* b) {
    return std::tie(a->spelling, a->id) < std::tie(b->spelling, b->id);
  });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i - 1]->spelling == sorted[i]->spelling) {
      return refuse("added tokens " + std::to_string(sorted[i - 1]->id) + " and " +
                    std::to_string(sorted[i]->id) + " are both spelled " + quote(sorted[i]->spelling));
    }
  }
  if (!parts_.normalize_nfc) return {};
  // A spelling that normalization changes would stand for a text that can never be met.
  for (const ControlToken& control : parts_.controls) {
    std::string storage;
    if (to_nfc(control.spelling, storage) != control.spelling) {
      return refuse("added token " + quote(control.spelling) +
                    " is not in the normal form that the normalizer makes");
    }
  }
  return {};
}

Status ModelReader::read_merge(JsonValue merge, std::size_t index) {
  const auto where = [index] { return "model.merges[" + std::to_string(index) + "]"; };
  std::string_view left, right;
  if (merge.is_string()) {
    const std::string_view both = merge.as_string();
    const std::size_t space = both.find(' ');
    left = both.substr(0, space);
    right = both.substr(space == std::string_view::npos ? both.size() : space + 1);
  } else if (merge.is_array() && merge.size() == 2) {
    std::string_view* next = &left;
    for (const JsonValue part : merge.elements()) {
      if (part.is_string()) *std::exchange(next, &right) = part.as_string();
    }
  }
  if (left.empty() || right.empty()) {
    return refuse(where() + " is neither \"left right\" nor [left, right]");
  }
  const TokenFinder& finder = parts_.bpe.finder;
  joint_.clear();
  const bool left_plain = append_byte_level(left, joint_);
  const std::size_t left_size = joint_.size();
  const bool right_plain = append_byte_level(right, joint_);
  const std::string_view joint = joint_;
  finder.prefetch(joint.substr(0, left_size));
  finder.prefetch(joint.substr(left_size));
  finder.prefetch(joint);
  const TokenId left_id = left_plain ? finder.find(joint.substr(0, left_size)) : -1;
  const TokenId right_id = right_plain ? finder.find(joint.substr(left_size)) : -1;
  if (left_id < 0 || right_id < 0) {
    return refuse(where() + " merges " + quote(left_id < 0 ? left : right) +
                  ", which is no token of model.vocab that text may become");
  }
  const TokenId result = finder.find(joint);
  if (result < 0) {
    return refuse(where() + " makes " + quote(std::string(left).append(right)) +
                  ", which is no token of model.vocab that text may become");
  }
  merges_.push_back({left_id, right_id, static_cast<std::uint32_t>(index)});
  parts_.bpe.merges.results.push_back(result);
  return {};
}

// What stands around a text is told of the file alone, so it is made of control tokens.
Status check_around_text(const TokenizerParts& parts) {
  for (const std::vector<TokenId>* ids : {&parts.before_text, &parts.behind_text}) {
    for (const TokenId id : *ids) {
      const bool control = std::any_of(parts.controls.begin(), parts.controls.end(),
                                       [id](const ControlToken& each) { return each.id == id; });
      if (!control)
        return refuse("TemplateProcessing puts token " + std::to_string(id) +
                      " around a text, which is none of the added tokens");
    }
  }
  return {};
}

}  // namespace

Result<TokenizerParts> read_tokenizer_json(std::string json) {
  const std::size_t json_bytes = json.size();
  NIBBLE_ASSIGN(const JsonDocument document, JsonDocument::parse(std::move(json)));
  const JsonValue root = document.root();
  if (!root.is_object()) return refuse("it is no JSON object");
  TokenizerParts parts;
  if (const std::optional<JsonValue> normalizer = member(root, "normalizer")) {
    NIBBLE_RETURN_IF_ERROR(read_normalizer(*normalizer, 0, parts));
  }
  PreTokenizerReader pre_tokenizer;
  if (const std::optional<JsonValue> value = member(root, "pre_tokenizer")) {
    NIBBLE_RETURN_IF_ERROR(pre_tokenizer.read(*value, 0));
  }
  if (!pre_tokenizer.byte_level)
    return refuse("the pre_tokenizer has no ByteLevel step; byte-level BPE is supported");
  parts.prefix_space = pre_tokenizer.prefix_space;
  parts.pre_tokenizer = PreTokenizer(std::move(pre_tokenizer.steps));
  const std::optional<JsonValue> decoder = member(root, "decoder");
  if (!decoder) return refuse("it has no decoder; ByteLevel is supported");
  NIBBLE_RETURN_IF_ERROR(check_decoder(*decoder, 0));
  if (const std::optional<JsonValue> post_processor = member(root, "post_processor")) {
    NIBBLE_RETURN_IF_ERROR(read_post_processor(*post_processor, 0, parts));
  }
  ModelReader model(parts, json_bytes);
  NIBBLE_RETURN_IF_ERROR(model.read(root));
  NIBBLE_RETURN_IF_ERROR(check_around_text(parts));
  return parts;
}

}  // namespace nibble
