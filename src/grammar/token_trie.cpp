#include "grammar/token_trie.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace nibble {
namespace {

constexpr std::array<std::uint32_t, 7> kLengths{1, 2, 4, 8, 16, 32, 0xFFFFFFFF};

// The kinds of characters. kRest: quotes, backslashes and what is no printable character; kLong and
// kLongBlank: those of two bytes and more; kPart: what is no whole character.
constexpr std::array<std::string_view, 12> kGroups{"abcdef",     "ghijklmnopqrstuvwxyz",
                                                   "ABCDEF",     "GHIJKLMNOPQRSTUVWXYZ",
                                                   "0123456789", "_",
                                                   "-",          ".",
                                                   " ",          "/",
                                                   ":",          "!#$%&'()*+,;<=>?@[]^`{|}~"};
constexpr unsigned kRest = kGroups.size(), kLong = kRest + 1, kLongBlank = kRest + 2, kPart = kRest + 3;
static_assert(kPart < 16);

// The byte that begins a mark: no UTF-8 has it, so no text needs tokens that do.
constexpr char kMark = '\xFF';

// Longer tokens (runs of blanks and dashes) are never chosen: each has shorter ways to be written.
constexpr std::size_t kLongest = 255;

// Of a 200,000 tokens' vocabulary 1.6 MB.
constexpr std::size_t kMostKindMasks = 64;

// Bytes of the whole plain characters at the front.
std::size_t plain_beginning(std::string_view bytes) {
  const auto first = std::find_if(bytes.begin(), bytes.end(), [](char byte) {
    return static_cast<unsigned char>(byte) < 0x20 || byte == '"' || byte == '\\';
  });
  return valid_utf8_prefix(bytes.substr(0, static_cast<std::size_t>(first - bytes.begin())));
}

bool is_plain(std::string_view bytes) { return plain_beginning(bytes) == bytes.size(); }

std::uint16_t characters_of(std::string_view bytes) {
  return static_cast<std::uint16_t>(std::count_if(bytes.begin(), bytes.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }));
}

// `sorted` are distinct.
Trie make_trie(const std::vector<std::pair<std::string_view, TokenId>>& sorted, const ByteKinds& kinds,
               bool plain) {
  Trie trie;
  trie.tokens.reserve(sorted.size());
  for (const auto& [bytes, token] : sorted) trie.tokens.push_back(token);
  std::vector<std::uint8_t> depths{0};
  std::vector<std::uint8_t> character{0};  // [nodes] where in a token the character begins that is being read
  trie.nodes.push_back({.children = 1, .end = static_cast<std::uint32_t>(sorted.size())});
  for (std::size_t at = 0; at < trie.nodes.size(); ++at) {
    const TrieNode node = trie.nodes[at];
    const std::size_t depth = depths[at];
    trie.nodes[at].children = static_cast<std::uint32_t>(trie.nodes.size());
    for (std::uint32_t i = node.begin + node.has_token; i < node.end;) {
      const char byte = sorted[i].first[depth];
      std::uint32_t end = i;
      while (end < node.end && sorted[end].first[depth] == byte) ++end;
      const bool has_token = sorted[i].first.size() == depth + 1;
      const std::string_view read = sorted[i].first.substr(character[at], depth + 1 - character[at]);
      const Utf8Sequence::Kind kind = read_utf8(read).kind;
      const bool cut_off = kind == Utf8Sequence::Kind::cut_off;
      ByteKindMask own = 0;
      if (kind == Utf8Sequence::Kind::complete) {
        own = kinds.of(read);
      } else if (!cut_off || has_token) {
        own = ByteKinds::parts();
      }
      trie.nodes.push_back({.children = 0,
                            .begin = i,
                            .end = end,
                            .byte = static_cast<std::uint8_t>(byte),
                            .has_token = has_token,
                            .own = own});
      depths.push_back(static_cast<std::uint8_t>(depth + 1));
      character.push_back(cut_off ? character[at] : static_cast<std::uint8_t>(depth + 1));
      i = end;
    }
  }
  trie.nodes.push_back({.children = static_cast<std::uint32_t>(trie.nodes.size())});
  for (std::uint32_t at = static_cast<std::uint32_t>(trie.nodes.size()) - 1; at-- > 0;) {
    TrieNode& node = trie.nodes[at];
    node.kinds = node.own;
    for (const TrieNode& child : trie.children(at)) {
      node.kinds |= child.kinds;
      node.characters = std::max(node.characters, child.characters);
    }
    if (plain && at != 0) node.characters += (node.byte & 0xC0) != 0x80;
  }
  std::vector<std::uint8_t> above(plain ? trie.nodes.size() : 0);  // [nodes] characters before it
  for (std::size_t at = 0; plain && at + 1 < trie.nodes.size(); ++at)
    for (const TrieNode& child : trie.children(static_cast<std::uint32_t>(at))) {
      const std::size_t place = trie.place(child);
      above[place] = static_cast<std::uint8_t>(above[at] + ((trie.nodes[at].byte & 0xC0) != 0x80 && at != 0));
      trie.nodes[place].longest = static_cast<std::uint8_t>(above[place] + child.characters);
    }
  return trie;
}

}  // namespace

ByteKinds::ByteKinds() {
  for (unsigned byte = 0; byte < kind_.size(); ++byte) {
    unsigned kind = kRest;
    for (unsigned group = 0; group < kGroups.size(); ++group)
      if (kGroups[group].find(static_cast<char>(byte)) != std::string_view::npos) kind = group;
    kind_[byte] = static_cast<ByteKindMask>(1u << kind);
  }
}

ByteKindMask ByteKinds::long_ones() { return 1u << kLong | 1u << kLongBlank; }

ByteKindMask ByteKinds::of(LongCharacters kind) {
  return static_cast<ByteKindMask>(1u << (kind == LongCharacters::blanks ? kLongBlank : kLong));
}

ByteKindMask ByteKinds::parts() { return 1u << kPart; }

ByteKindMask ByteKinds::of(std::string_view character) const {
  if (character.size() == 1) return kind_[static_cast<unsigned char>(character.front()) & 0x7F];
  return of(is_long_blank(character) ? LongCharacters::blanks : LongCharacters::others);
}

ByteKindMask ByteKinds::within(const ByteSet& set) const {
  unsigned inside = (1u << kLong) - 1;
  for (unsigned byte = 0; byte < kind_.size(); ++byte)
    if (!set.has(byte)) inside &= ~unsigned{kind_[byte]};
  return static_cast<ByteKindMask>(inside);
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer, std::span<const TokenId> ends, TokenId size,
                     std::span<const std::string_view> marks)
    : size_(size), ends_(ends.begin(), ends.end()) {
  std::sort(ends_.begin(), ends_.end());
  for (const std::string_view mark : marks)
    if (const auto token = tokenizer.control_id(mark)) marks_.emplace_back(mark, *token);
  begin_.reserve(static_cast<std::size_t>(size) + 1);
  for (TokenId token = 0; token < size; ++token) {
    begin_.push_back(static_cast<std::uint32_t>(all_bytes_.size()));
    const auto is_this = [token](const auto& mark) { return mark.second == token; };
    const auto mark = std::find_if(marks_.begin(), marks_.end(), is_this);
    if (mark != marks_.end()) all_bytes_ += this->mark(mark->first);
    if (token >= tokenizer.vocabulary_size() || tokenizer.is_control(token) || is_end(token)) continue;
    const std::string_view bytes = tokenizer.bytes(token);
    const bool like_mark = !marks_.empty() && bytes.find(kMark) != bytes.npos;
    if (bytes.size() <= kLongest && !like_mark) all_bytes_.append(bytes);
  }
  begin_.push_back(static_cast<std::uint32_t>(all_bytes_.size()));

  std::vector<std::pair<std::string_view, TokenId>> sorted;
  for (TokenId token = 0; token < size; ++token)
    if (!bytes(token).empty()) sorted.emplace_back(bytes(token), token);
  for (const auto& [bytes, token] : sorted)
    if (const auto commas = static_cast<std::uint32_t>(std::ranges::count(bytes, ',')); commas > 0) {
      with_comma_.push_back(token);
      most_commas_ = std::max(most_commas_, commas);
    }
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [bytes, token] : sorted) by_length_.push_back(token);
  const auto length = [this](TokenId token) { return bytes(token).size(); };
  std::ranges::stable_sort(by_length_, std::ranges::greater(), length);
  std::vector<std::pair<std::string_view, TokenId>> plain, other;
  up_to_.assign(kLengths.size(), std::vector<std::uint32_t>(token_mask_words(size)));
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const auto& [bytes, token] = sorted[i];
    if (i > 0 && bytes == sorted[i - 1].first) {
      twins_.emplace_back(sorted[i - 1].second, token);
      continue;
    }
    if (!is_plain(bytes)) {
      other.push_back(sorted[i]);
      continue;
    }
    plain.push_back(sorted[i]);
    const std::uint16_t characters = characters_of(bytes);
    of_length_.resize(std::max<std::size_t>(of_length_.size(), characters + std::size_t{1}));
    of_length_[characters].push_back(token);
    for (std::size_t l = 0; l < kLengths.size(); ++l)
      if (characters <= kLengths[l]) up_to_[l][static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
  }
  plain_ = make_trie(plain, kinds_, true);
  for (const auto& [bytes, token] : plain) {
    Made made{.kinds = 0, .characters = characters_of(bytes)};
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::string_view character = rest.substr(0, read_utf8(rest).length);
      made.kinds |= kinds_.of(character);
      rest.remove_prefix(character.size());
    }
    plain_made_.push_back(made);
  }
  other_ = make_trie(other, kinds_, false);

  std::map<std::string_view, std::vector<Ended>> by_ending;
  for (const auto& [bytes, token] : other)
    by_ending[bytes.substr(plain_beginning(bytes))].push_back({token, characters_of(bytes)});
  std::vector<std::pair<std::string_view, TokenId>> endings;
  for (auto& [ending, group] : by_ending) {
    endings.emplace_back(ending, static_cast<TokenId>(groups_.size()));
    longest_ended_.push_back(std::ranges::max(group, {}, &Ended::characters).characters);
    groups_.push_back(std::move(group));
  }
  endings_ = make_trie(endings, kinds_, false);
}

std::shared_ptr<const GrammarVocabulary> GrammarVocabulary::make(const Tokenizer& tokenizer,
                                                                 std::span<const TokenId> ends, TokenId size,
                                                                 std::span<const std::string_view> marks) {
  return std::make_shared<const TokenTrie>(tokenizer, ends, size, marks);
}

std::string TokenTrie::mark(std::string_view spelling) const {
  for (std::size_t i = 0; i < marks_.size(); ++i)
    if (marks_[i].first == spelling) return {kMark, static_cast<char>(i)};
  return std::string(spelling);
}

MaskCounts TokenTrie::mask_counts() const {
  return {.found = masks_, .seconds = static_cast<double>(mask_nanoseconds_) * 1e-9};
}

void TokenTrie::count_mask(std::chrono::nanoseconds time) const {
  ++masks_;
  mask_nanoseconds_ += static_cast<std::uint64_t>(time.count());
}

bool TokenTrie::is_end(TokenId token) const { return std::binary_search(ends_.begin(), ends_.end(), token); }

std::string_view TokenTrie::bytes(TokenId token) const {
  NIBBLE_CHECK(token >= 0 && token < size_);
  const auto i = static_cast<std::size_t>(token);
  return std::string_view(all_bytes_).substr(begin_[i], begin_[i + 1] - begin_[i]);
}

std::optional<TokenId> TokenTrie::longest_beginning(std::string_view text) const {
  std::optional<TokenId> found;
  std::size_t longest = 0;
  for (const Trie* trie : {&plain_, &other_}) {
    std::uint32_t place = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::span<const TrieNode> children = trie->children(place);
      const auto next = std::ranges::find(children, static_cast<std::uint8_t>(text[i]), &TrieNode::byte);
      if (next == children.end()) break;
      place = trie->place(*next);
      if (!next->has_token || i < longest) continue;
      longest = i + 1;
      found = trie->tokens[next->begin];
    }
  }
  return found;
}

std::span<const TokenId> TokenTrie::longer(std::uint32_t than) const {
  const auto end =
      std::ranges::partition_point(by_length_, [&](TokenId token) { return bytes(token).size() > than; });
  return {by_length_.begin(), end};
}

void TokenTrie::add_kinds(TokenMask mask, ByteKindMask kinds, std::uint32_t characters) const {
  const std::lock_guard lock(mutex_);
  if (of_kinds_.size() >= kMostKindMasks) of_kinds_.clear();
  const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(characters, kLongest));
  std::vector<std::uint32_t>& bits = of_kinds_[most << 16 | kinds];
  if (bits.empty()) {
    bits.resize(mask.size());
    for (std::size_t i = 0; i < plain_.tokens.size(); ++i) {
      const auto token = static_cast<std::size_t>(plain_.tokens[i]);
      if ((plain_made_[i].kinds & ~kinds) == 0 && plain_made_[i].characters <= most)
        bits[token / 32] |= 1u << token % 32;
    }
  }
  for (std::size_t i = 0; i < bits.size(); ++i) mask[i] |= bits[i];
}

bool TokenTrie::add_plain(TokenMask mask, std::uint32_t characters) const {
  if (characters == 0) return of_length_.size() <= 1;
  std::size_t set = kLengths.size() - 1;
  if (characters < of_length_.size())
    while (kLengths[set] > characters) --set;
  const std::vector<std::uint32_t>& bits = up_to_[set];
  for (std::size_t i = 0; i < bits.size(); ++i) mask[i] |= bits[i];
  if (set + 1 == kLengths.size()) return true;
  for (std::size_t length = kLengths[set] + 1; length <= characters; ++length)
    for (const TokenId token : of_length_[length])
      mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
  return false;
}

void TokenTrie::set_twins(TokenMask mask) const {
  for (const auto& [first, second] : twins_) {
    const std::uint32_t bit = mask[static_cast<std::size_t>(first) / 32] >> first % 32 & 1;
    std::uint32_t& word = mask[static_cast<std::size_t>(second) / 32];
    word = (word & ~(1u << second % 32)) | bit << second % 32;
  }
}

}  // namespace nibble
