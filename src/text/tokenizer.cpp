#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/quote.h"
#include "base/utf8.h"
#include "text/normalizer.h"
#include "text/tokenizer_parts.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// The largest tokenizer.json of a current model has 33 MB.
constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;

Result<std::string> read_tokenizer_file(const fs::path& path) {
  Result<std::string> text = read_file(path, kMaxFileBytes);
  if (text.ok() || text.status().code() != StatusCode::invalid_argument) return text;
  return broken_model(text.status().message());  // no regular file, or far too large
}

constexpr std::string_view kRanksOfKimi = "tiktoken.model";

// Of a model's folder; any other path is a file's.
fs::path tokenizer_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  const bool ranks = !fs::exists(path / "tokenizer.json", error) && fs::exists(path / kRanksOfKimi, error);
  return path / (ranks ? kRanksOfKimi : "tokenizer.json");
}

// Control tokens by their spelling.
class ControlFinder {
 public:
  explicit ControlFinder(const std::vector<ControlToken>& controls) {
    for (const ControlToken& control : controls) {
      by_spelling_.emplace(control.spelling, control.id);
      std::vector<std::size_t>& lengths = lengths_[static_cast<unsigned char>(control.spelling[0])];
      lengths.push_back(control.spelling.size());
    }
    for (std::vector<std::size_t>& lengths : lengths_) {
      std::sort(lengths.begin(), lengths.end(), std::greater<>());
      lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    }
  }

  std::optional<TokenId> find(std::string_view spelling) const {
    const auto at = by_spelling_.find(spelling);
    return at == by_spelling_.end() ? std::nullopt : std::make_optional(at->second);
  }

  struct Match {
    TokenId id = -1;  // -1: none
    std::size_t length = 0;
  };
  // The longest control token that `text` (not empty) begins with.
  Match at_front(std::string_view text) const {
    for (const std::size_t length : lengths_[static_cast<unsigned char>(text[0])]) {
      if (length > text.size()) continue;
      if (const std::optional<TokenId> id = find(text.substr(0, length))) return {*id, length};
    }
    return {};
  }

 private:
  std::unordered_map<std::string_view, TokenId> by_spelling_;
  std::array<std::vector<std::size_t>, 256> lengths_;  // by first byte, longest first
};

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerParts from)
      : vocabulary(std::move(from.vocabulary)),
        controls(std::move(from.controls)),
        control_finder(controls),
        before_text(std::move(from.before_text)),
        behind_text(std::move(from.behind_text)),
        normalize_nfc(from.normalize_nfc),
        prefix_space(from.prefix_space),
        pre_tokenizer(std::move(from.pre_tokenizer)),
        bpe(*vocabulary, std::move(from.bpe)),
        control_ids(static_cast<std::size_t>(vocabulary->size())),
        hidden_ids(control_ids.size()) {
    for (const ControlToken& control : controls) {
      control_ids[static_cast<std::size_t>(control.id)] = true;
      hidden_ids[static_cast<std::size_t>(control.id)] = control.hidden;
    }
  }

  // Appends the ids of text in which nothing is a control token.
  void encode_plain(std::string_view text, PreTokenizer::Cutter& cutter, std::vector<TokenId>& ids) const {
    if (text.empty()) return;
    std::string valid, normal, prefixed;
    if (!is_valid_utf8(text)) {
      valid = to_valid_utf8(text);
      text = valid;
    }
    if (normalize_nfc) text = to_nfc(text, normal);
    if (prefix_space && text[0] != ' ') {
      prefixed.reserve(text.size() + 1);
      prefixed.append(1, ' ').append(text);
      text = prefixed;
    }
    // A few pieces wait while the table rows of the next ones come in.
    std::array<std::string_view, 8> waiting;
    std::size_t count = 0;
    const auto encode_waiting = [&] {
      for (std::size_t i = 0; i < count; ++i) bpe.encode(waiting[i], ids);
      count = 0;
    };
    cutter.cut(text, [&](std::string_view piece) {
      bpe.prefetch(piece);
      waiting[count++] = piece;
      if (count == waiting.size()) encode_waiting();
    });
    encode_waiting();
  }

  std::unique_ptr<const Vocabulary> vocabulary;
  std::vector<ControlToken> controls;
  ControlFinder control_finder;
  std::vector<TokenId> before_text, behind_text;
  bool normalize_nfc;
  bool prefix_space;
  PreTokenizer pre_tokenizer;
  BpeModel bpe;
  std::vector<bool> control_ids;  // [vocabulary size]
  std::vector<bool> hidden_ids;   // [vocabulary size]
};

Tokenizer::Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Result<Tokenizer> Tokenizer::load(const fs::path& path, std::string_view encoding) {
  const fs::path file = tokenizer_file(path);
  NIBBLE_ASSIGN(std::string text, read_tokenizer_file(file));
  const auto read = [&]() -> Result<TokenizerParts> {
    if (file.extension() == ".tiktoken") return read_tiktoken(text, encoding);
    if (!encoding.empty()) {
      return invalid_argument("--encoding " + quote(encoding) + " is for .tiktoken rank files");
    }
    if (file.filename() == kRanksOfKimi) {
      NIBBLE_ASSIGN(std::string config, read_tokenizer_file(file.parent_path() / "tokenizer_config.json"));
      return read_kimi_tokenizer(text, std::move(config));
    }
    return read_tokenizer_json(std::move(text));
  };
  Result<TokenizerParts> parts = read();
  if (!parts.ok()) return parts.status().with_context(quote(file.native()));
  return from_parts(std::move(parts).value());
}

Tokenizer Tokenizer::from_parts(TokenizerParts parts) {
  return Tokenizer(std::make_shared<const State>(std::move(parts)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const { return encode(text, {}); }

std::vector<TokenId> Tokenizer::encode_trusted(std::string_view text) const {
  const TextSpan whole{0, text.size()};
  return encode(text, std::span(&whole, 1));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, std::span<const TextSpan> trusted) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 16);
  PreTokenizer::Cutter cutter(state_->pre_tokenizer);
  std::size_t done = 0;  // what lies before is in ids
  std::size_t previous_end = 0;
  for (const TextSpan& span : trusted) {
    NIBBLE_CHECK(span.begin <= span.end && span.end <= text.size() && span.begin >= previous_end,
                 "trusted spans lie in the text, ascending and disjoint");
    previous_end = span.end;
    for (std::size_t at = span.begin; at < span.end;) {
      const ControlFinder::Match control = state_->control_finder.at_front(text.substr(at, span.end - at));
      if (control.id < 0) {
        ++at;
        continue;
      }
      state_->encode_plain(text.substr(done, at - done), cutter, ids);
      ids.push_back(control.id);
      at += control.length;
      done = at;
    }
  }
  state_->encode_plain(text.substr(done), cutter, ids);
  return ids;
}

std::span<const TokenId> Tokenizer::before_text() const { return state_->before_text; }

std::span<const TokenId> Tokenizer::behind_text() const { return state_->behind_text; }

std::string_view Tokenizer::bytes(TokenId id) const { return state_->vocabulary->bytes(id); }

std::string Tokenizer::decode(std::span<const TokenId> ids, bool show_hidden) const {
  std::string joined;
  for (const TokenId id : ids) {
    if (show_hidden || !is_hidden(id)) joined.append(bytes(id));
  }
  return to_valid_utf8(joined);
}

bool Tokenizer::is_control(TokenId id) const {
  return id >= 0 && id < vocabulary_size() && state_->control_ids[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_hidden(TokenId id) const {
  return id >= 0 && id < vocabulary_size() && state_->hidden_ids[static_cast<std::size_t>(id)];
}

std::optional<TokenId> Tokenizer::control_id(std::string_view spelling) const {
  return state_->control_finder.find(spelling);
}

TokenId Tokenizer::vocabulary_size() const { return state_->vocabulary->size(); }

}  // namespace nibble
