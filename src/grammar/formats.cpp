#include "grammar/formats.h"

#include <string>
#include <utility>

namespace nibble {
namespace {

#define NIBBLE_DATE                                                                                          \
  "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?" \
  ":0[1-9]|1[0-9]|2[0-8]))"                                                                                  \
  "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define NIBBLE_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define NIBBLE_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define NIBBLE_HOST NIBBLE_LABEL "(?:\\." NIBBLE_LABEL ")*"
#define NIBBLE_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define NIBBLE_IPV4 NIBBLE_BYTE "(?:\\." NIBBLE_BYTE "){3}"
#define NIBBLE_H16 "[0-9A-Fa-f]{1,4}"
#define NIBBLE_LS32 "(?:" NIBBLE_H16 ":" NIBBLE_H16 "|" NIBBLE_IPV4 ")"
#define NIBBLE_IPV6                                                                                       \
  "(?:(?:" NIBBLE_H16 ":){6}" NIBBLE_LS32 "|::(?:" NIBBLE_H16 ":){5}" NIBBLE_LS32 "|(?:" NIBBLE_H16       \
  ")?::(?:" NIBBLE_H16 ":){4}" NIBBLE_LS32 "|(?:(?:" NIBBLE_H16 ":){0,1}" NIBBLE_H16 ")?::(?:" NIBBLE_H16 \
  ":){3}" NIBBLE_LS32 "|(?:(?:" NIBBLE_H16 ":){0,2}" NIBBLE_H16 ")?::(?:" NIBBLE_H16 ":){2}" NIBBLE_LS32  \
  "|(?:(?:" NIBBLE_H16 ":){0,3}" NIBBLE_H16 ")?::" NIBBLE_H16 ":" NIBBLE_LS32 "|(?:(?:" NIBBLE_H16        \
  ":){0,4}" NIBBLE_H16 ")?::" NIBBLE_LS32 "|(?:(?:" NIBBLE_H16 ":){0,5}" NIBBLE_H16 ")?::" NIBBLE_H16     \
  "|(?:(?:" NIBBLE_H16 ":){0,6}" NIBBLE_H16 ")?::)"
// RFC 3986: unreserved, percent-encoded, sub-delims and what a path, query or fragment adds.
#define NIBBLE_PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define NIBBLE_AUTHORITY                                                     \
  "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(?:\\[" NIBBLE_IPV6 \
  "\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
#define NIBBLE_TAIL "(?:\\?(?:" NIBBLE_PCHAR "|[/?])*)?(?:#(?:" NIBBLE_PCHAR "|[/?])*)?"
#define NIBBLE_HIER                                                                         \
  "(?://" NIBBLE_AUTHORITY "(?:/" NIBBLE_PCHAR "*)*|/(?:" NIBBLE_PCHAR "+(?:/" NIBBLE_PCHAR \
  "*)*)?|" NIBBLE_PCHAR "+(?:/" NIBBLE_PCHAR "*)*|)"
#define NIBBLE_URI "[A-Za-z][A-Za-z0-9+.-]*:" NIBBLE_HIER NIBBLE_TAIL
#define NIBBLE_NOCOLON "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
#define NIBBLE_RELATIVE                                                                     \
  "(?://" NIBBLE_AUTHORITY "(?:/" NIBBLE_PCHAR "*)*|/(?:" NIBBLE_PCHAR "+(?:/" NIBBLE_PCHAR \
  "*)*)?|" NIBBLE_NOCOLON "+(?:/" NIBBLE_PCHAR "*)*|)" NIBBLE_TAIL

// RFC 6570, with operators that mean something.
#define NIBBLE_VARIABLE \
  "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(?::[1-9][0-9]{0,3}|\\*)?"
#define NIBBLE_TEMPLATE                                                                                     \
  "(?:[!#$&()*+,\\-./0-9:;=?@A-Z\\[\\]_a-z~\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF]|%[0-9A-Fa-f]{2}|" \
  "\\{[+#./;?&]?" NIBBLE_VARIABLE "(?:," NIBBLE_VARIABLE ")*\\})*"

constexpr std::pair<std::string_view, StringFormat> kFormats[] = {
    {"date", {"^" NIBBLE_DATE "$"}},
    {"time", {"^" NIBBLE_TIME "$"}},
    {"date-time", {"^" NIBBLE_DATE "[tT]" NIBBLE_TIME "$"}},
    {"duration",
     {"^P(?:[0-9]+W|(?=.)(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)?(?:T(?:[0-9]+H(?:[0-"
      "9]+M(?:[0-9]+S)?)?"
      "|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?)$"}},
    {"email",
     {"^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@(?:" NIBBLE_HOST
      "|\\[" NIBBLE_IPV4 "\\])$"}},
    {"hostname", {"^(?!.{254})" NIBBLE_HOST "$"}},
    {"ipv4", {"^" NIBBLE_IPV4 "$"}},
    {"ipv6", {"^" NIBBLE_IPV6 "$"}},
    {"uri", {"^" NIBBLE_URI "$"}},
    {"uri-reference", {"^(?:" NIBBLE_URI "|" NIBBLE_RELATIVE ")$"}},
    {"uuid", {"^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"}},
    {"json-pointer", {"^(?:/(?:[^/~]|~[01])*)*$"}},
    {"relative-json-pointer", {"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)$"}},
    {"regex", {.partly = true}},
    {"iri", {}},
    {"iri-reference", {}},
    {"idn-email", {}},
    {"idn-hostname", {}},
    {"uri-template", {.pattern = "^" NIBBLE_TEMPLATE "$", .partly = true}},
};

constexpr int kGroupsOfPattern = 4;

// ECMA-262's patterns but for back-references, named groups, look-behind and what old browsers forgave;
// groups stand so many levels deep in each other.
std::string pattern_of_patterns(int levels) {
  const std::string escape = R"(\\(?:[dDwWsSfnrtv^$\\.*+?()[\]{}|/]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}))";
  // Ranges whose ends are in order. A dash that is none stands at a side.
  const std::string among =
      R"((?:0-[0-9]|[0-9]-9|a-[a-z]|[a-z]-z|A-[A-Z]|[A-Z]-Z|[^\\[\]-]|\\-|)" + escape + ")";
  const std::string set = R"(\[\^?(?:-|)" + among + ")" + among + R"(*-?\])";
  // The second of two counts has more digits than the first, or is no smaller.
  const std::string counts = R"([0-9]{1,3},?|[0-9],[1-9][0-9]{1,2}|0,[0-9]|1,[1-9]|2,[2-9]|3,[3-9]|4,[4-9]|)"
                             R"(5,[5-9]|6,[6-9]|7,[7-9]|8,[89]|9,9)";
  const std::string times = R"((?:(?:[*+?]|\{(?:)" + counts + R"()\})\?{0,1}){0,1})";
  std::string atom = R"([^\^$\\.*+?()[\]{}|]|\.|)" + escape + "|" + set;
  std::string alone = R"([|^$]|\\[bB])";
  if (levels > 0) {
    atom += R"(|\((?:\?:)?)" + pattern_of_patterns(levels - 1) + R"(\))";
    alone += R"(|\(\?[=!])" + pattern_of_patterns(0) + R"(\))";
  }
  return "(?:" + alone + "|(?:" + atom + ")" + times + ")*";
}

}  // namespace

std::optional<StringFormat> find_string_format(std::string_view name) {
  for (const auto& [known, format] : kFormats)
    if (known == name) {
      if (name != "regex") return format;
      static const std::string of_patterns = "^" + pattern_of_patterns(kGroupsOfPattern) + "$";
      return StringFormat{.pattern = of_patterns, .partly = true};
    }
  return std::nullopt;
}

}  // namespace nibble
