#include "grammar/formats.h"

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
    {"regex", {}},
    {"iri", {}},
    {"iri-reference", {}},
    {"idn-email", {}},
    {"idn-hostname", {}},
    {"uri-template", {}},
};

}  // namespace

std::optional<StringFormat> find_string_format(std::string_view name) {
  for (const auto& [known, format] : kFormats)
    if (known == name) return format;
  return std::nullopt;
}

}  // namespace nibble
