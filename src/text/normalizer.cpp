#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/unicode_class.h"

namespace nibble {
namespace {

struct CodePointRange {
  char32_t first, last;
};

// Code points to which the normalizer of PyPI tokenizers (its tables are of Unicode 9) gives no combining
// class and no decomposition, but utf8proc 2.8 or a later one may. Between them text is normalized by itself.
constexpr CodePointRange kInert[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1B4E, 0x1B4F},
    {0x1B7F, 0x1B7F},   {0x1C89, 0x1C8A},   {0x1DF6, 0x1DFA},   {0x2427, 0x2429},   {0x2FFC, 0x2FFF},
    {0x31E4, 0x31E5},   {0x31EF, 0x31EF},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0xA82C, 0xA82C},
    {0x105C0, 0x105F3}, {0x10D24, 0x10D27}, {0x10D40, 0x10D65}, {0x10D69, 0x10D85}, {0x10D8E, 0x10D8F},
    {0x10EAB, 0x10EAC}, {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E},
    {0x11390, 0x113B5}, {0x113B7, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA},
    {0x113CC, 0x113D5}, {0x113D7, 0x113D8}, {0x113E1, 0x113E2}, {0x1145E, 0x1145E}, {0x116D0, 0x116E3},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11BC0, 0x11BE1}, {0x11BF0, 0x11BF9}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x11F5A, 0x11F5A}, {0x13460, 0x143FA}, {0x16100, 0x16139}, {0x16D40, 0x16D79},
    {0x16FF0, 0x16FF1}, {0x18CFF, 0x18CFF}, {0x1CC00, 0x1CCF9}, {0x1CD00, 0x1CEB3}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5D0, 0x1E5FA},
    {0x1E5FF, 0x1E5FF}, {0x1F8B2, 0x1F8BB}, {0x1F8C0, 0x1F8C1}, {0x1FA89, 0x1FA89}, {0x1FA8F, 0x1FA8F},
    {0x1FABE, 0x1FABE}, {0x1FAC6, 0x1FAC6}, {0x1FADC, 0x1FADC}, {0x1FADF, 0x1FADF}, {0x1FAE9, 0x1FAE9},
    {0x1FBCB, 0x1FBEF}, {0x2EBF0, 0x2EE5D},
};

bool is_inert(char32_t c) {
  if (c < kInert[0].first) return false;
  const auto* after =
      std::upper_bound(std::begin(kInert), std::end(kInert), c,
                       [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != std::begin(kInert) && c <= std::prev(after)->last;
}

// Whether normal form C could change text because of this character: it combines, decomposes, or is a Hangul
// part. Below U+0300 nothing does.
bool may_change(char32_t c, const UnicodeClasses& classes) {
  if (c < 0x300) return false;
  if (c >= 0x1100 && c <= 0x11FF) return true;
  if (classes.of(c) & kMark) return true;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->decomp_seqindex != UINT16_MAX;
}

utf8proc_propval_t combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// utf8proc's own reordering is quadratic in a run of marks, so the run is sorted here.
void sort_marks(std::vector<utf8proc_int32_t>& text) {
  for (std::size_t i = 0; i < text.size();) {
    if (combining_class(text[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(
        text.begin() + static_cast<std::ptrdiff_t>(i), text.begin() + static_cast<std::ptrdiff_t>(end),
        [](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

// Appends what has gathered in `decomposed`, composed, and empties it.
void flush(std::vector<utf8proc_int32_t>& decomposed, std::string& out) {
  if (decomposed.empty()) return;
  sort_marks(decomposed);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(decomposed.data(), static_cast<utf8proc_ssize_t>(decomposed.size()), options);
  NIBBLE_CHECK(count >= 0);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_utf8(out, static_cast<char32_t>(decomposed[static_cast<std::size_t>(i)]));
  }
  decomposed.clear();
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
  const UnicodeClasses& classes = UnicodeClasses::get();
  bool unchanged = true;
  for (std::size_t at = 0; at < text.size() && unchanged;) {
    const CodePoint c = decode_valid_utf8(text.data() + at);
    unchanged = !may_change(c.value, classes);
    at += c.length;
  }
  if (unchanged) return text;

  storage.clear();
  storage.reserve(text.size() + text.size() / 8);
  std::vector<utf8proc_int32_t> decomposed;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  constexpr std::size_t kBatch = 4096;  // keeps memory small; a starter that begins a new batch ends the last
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_valid_utf8(text.data() + at);
    at += c.length;
    if (is_inert(c.value)) {
      flush(decomposed, storage);
      append_utf8(storage, c.value);
      continue;
    }
    if (c.value < 0x300 && decomposed.size() >= kBatch) flush(decomposed, storage);
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), parts, 32, options, &boundary);
    NIBBLE_CHECK(count > 0 && count <= 32);
    decomposed.insert(decomposed.end(), parts, parts + count);
  }
  flush(decomposed, storage);
  return storage;
}

}  // namespace nibble
