#include "text/jinja/jinja.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <fstream>

#include "text/jinja/jinja_value.h"

namespace nibble {
namespace {

using jinja::Value;
using jinja::Variables;

Result<RenderedPrompt> render(std::string_view source, const Variables& variables = {},
                              const jinja::Settings& settings = {}) {
  NIBBLE_ASSIGN(const JinjaTemplate parsed, JinjaTemplate::parse(source));
  return parsed.render(variables, settings);
}

std::string text_or_fault(std::string_view source, const Variables& variables = {},
                          const jinja::Settings& settings = {}) {
  const auto rendered = render(source, variables, settings);
  return rendered.ok() ? rendered->text : rendered.status().message();
}

// The text with its trusted parts in brackets.
std::string bracketed(const RenderedPrompt& prompt) {
  std::string out;
  std::size_t at = 0;
  for (const TextSpan& span : prompt.trusted) {
    out += prompt.text.substr(at, span.begin - at) + "[" +
           prompt.text.substr(span.begin, span.end - span.begin) + "]";
    at = span.end;
  }
  return out + prompt.text.substr(at);
}

std::string trust(std::string_view source, const Variables& variables = {}) {
  const auto rendered = render(source, variables);
  return rendered.ok() ? bracketed(*rendered) : rendered.status().message();
}

TEST(Jinja, RendersEverySnippetAsJinja2Did) {
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/data/chat_templates/snippets.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const auto first = JsonDocument::parse(line).value();
  Variables variables;
  const JsonValue given = *first.root().find("variables");
  for (const auto& member : given.members()) {
    variables.emplace_back(std::string(member.first), Value::from_json(member.second).value());
  }
  jinja::Settings settings;
  settings.now.tm_year = 125;
  settings.now.tm_mon = 7;
  settings.now.tm_mday = 5;
  settings.now.tm_wday = 2;
  settings.now.tm_yday = 216;
  settings.now.tm_hour = 13;
  settings.now.tm_min = 14;
  settings.now.tm_sec = 15;
  int count = 0;
  while (std::getline(file, line)) {
    const auto golden = JsonDocument::parse(line).value();
    const std::string source(golden.root().find("template")->as_string());
    const JsonValue text = *golden.root().find("text");
    const auto rendered = render(source, variables, settings);
    if (text.is_null()) {
      EXPECT_FALSE(rendered.ok()) << source << "\ngives " << rendered->text;
    } else {
      ASSERT_TRUE(rendered.ok()) << source << "\n" << rendered.status().message();
      EXPECT_EQ(rendered->text, text.as_string()) << source;
    }
    ++count;
  }
  EXPECT_GT(count, 150);
}

TEST(Jinja, AFaultNamesItsLineAndWhatIsWrong) {
  EXPECT_EQ(text_or_fault("a\n{% nosuch %}"), "chat template line 2: there is no tag 'nosuch' here");
  EXPECT_EQ(text_or_fault("{{ 1 | nosuch }}"), "chat template line 1: there is no filter 'nosuch' here");
  EXPECT_EQ(text_or_fault("\n\n{{ x.y }}"), "chat template line 3: 'x' is undefined");
  EXPECT_EQ(text_or_fault("{{ {}.a.b }}"), "chat template line 1: 'dict object' has no attribute 'a'");
  EXPECT_EQ(text_or_fault("{{ 'a' + 1 }}"), "chat template line 1: '+' does not go with str and int");
  EXPECT_EQ(text_or_fault("x\n{% if x %}"),
            "chat template line 2: expected '{% endif %}', not the end of the template");
  EXPECT_EQ(text_or_fault("{% for a, b in [[1]] %}{% endfor %}"),
            "chat template line 1: 1 values cannot be assigned to 2 names");
  EXPECT_EQ(text_or_fault("{% if x %}\n{% else %}\n{{ raise_exception('roles must alternate') }}{% endif %}"),
            "chat template line 3: the template refuses the conversation: roles must alternate");
  EXPECT_EQ(text_or_fault("{% include 'x' %}"), "chat template line 1: there is no tag 'include' here");
  EXPECT_EQ(JinjaTemplate::parse("{{").status().code(), StatusCode::broken_model);
}

// --- Limits: each of these would run for ever, or fill the memory, or the stack.

TEST(Jinja, EndlessWorkIsCutOff) {
  jinja::Settings small;
  small.max_steps = 100'000;
  small.max_text_bytes = 10'000;
  for (const std::string_view source : {
           "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
           "{{ 'x' * 1000000000000 }}",
           "{{ [1] * 1000000000000 }}",
           "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
           "{% set n = namespace(l=1) %}{% for i in range(99) %}{% set n.l = [n.l, n.l] %}{% endfor %}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
           "{% for i in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}",
           "{{ ('a' * 9000)|replace('a', 'b' * 9000) }}",
           "{{ '%10000s' % 'a' * 2 }}",
       }) {
    const auto rendered = render(source, {}, small);
    ASSERT_FALSE(rendered.ok()) << source;
    EXPECT_EQ(rendered.status().code(), StatusCode::resource_exhausted)
        << source << rendered.status().message();
  }
}

TEST(Jinja, NestingBeyondTheStackIsRefused) {
  const auto nested = [](const std::string& open, const std::string& core, const std::string& close,
                         int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += open;
    text += core;
    for (int i = 0; i < times; ++i) text += close;
    return text;
  };
  constexpr int kMany = 20'000;
  for (const std::string& expression :
       {nested("(", "1", ")", kMany), nested("[", "1", "]", kMany), nested("not ", "1", "", kMany),
        nested("-", "1", "", kMany), nested("1 + ", "1", "", kMany), nested("x.", "x", "", kMany),
        nested("1 if 1 else ", "1", "", kMany), nested("{1:", "1", "}", kMany),
        nested("", "x", "|list", kMany), nested("f(", "x", ")", kMany), nested("x[", "1", "]", kMany),
        nested("1 or ", "1", "", kMany)}) {
    const auto parsed = JinjaTemplate::parse("{{ " + expression + " }}");
    ASSERT_FALSE(parsed.ok()) << expression.substr(0, 20);
  }
  EXPECT_FALSE(JinjaTemplate::parse(nested("{% if 1 %}", "x", "{% endif %}", kMany)).ok());
  EXPECT_FALSE(JinjaTemplate::parse("{% for " + nested("(", "x", ")", kMany) + " in y %}{% endfor %}").ok());
}

// --- Trust

TEST(JinjaTrust, TheTemplatesTextIsTrustedAndTheRequestsIsNot) {
  const Variables variables = {{"user", Value::untrusted("hi")}, {"bos", Value::trusted("<s>")}};
  EXPECT_EQ(trust("<|a|>{{ user }}<|b|>", variables), "[<|a|>]hi[<|b|>]");
  EXPECT_EQ(trust("{{ '<|' ~ 'a' + '|>' }}", variables), "[<|a|>]");
  EXPECT_EQ(trust("{{ bos }}{{ '<|' + user + '|>' }}", variables), "[<s><|]hi[|>]");
  EXPECT_EQ(trust("{% set x = user %}{{ x }}{% set y %}<{{ x }}>{% endset %}{{ y }}", variables),
            "hi[<]hi[>]");
  EXPECT_EQ(trust("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(user) ~ m('t') }}", variables), "[<]hi[><t>]");
}

TEST(JinjaTrust, FollowsThePartsOfATextThroughItsOperations) {
  const Variables variables = {{"u", Value::untrusted("us er")}};
  EXPECT_EQ(trust("{{ ('<' + u + '>')[1:-1] }}|", variables), "us er[|]");
  EXPECT_EQ(trust("{{ ('<' + u + '>')[::-1] }}", variables), "[>]re su[<]");
  EXPECT_EQ(trust("{{ ('<' + u + '>').split(' ')|join('_') }}", variables), "[<]us[_]er[>]");
  EXPECT_EQ(trust("{{ u|replace(' ', '<|x|>') }}", variables), "us[<|x|>]er");
  EXPECT_EQ(trust("{{ '<a>'|replace('a', u) }}", variables), "[<]us er[>]");
  EXPECT_EQ(trust("{{ ('<' ~ u)|upper }}", variables), "[<]US ER");
  EXPECT_EQ(trust("{{ '%s<|x|>%d' % (u, 5) }}", variables), "us er[<|x|>]5");
  EXPECT_EQ(trust("{{ '{}<|x|>'.format(u) }}", variables), "us er[<|x|>]");
  EXPECT_EQ(trust("{{ ('  <' ~ u ~ '>  ')|trim }}", variables), "[<]us er[>]");
  EXPECT_EQ(trust("{{ {'a': '<|x|>'}|tojson }}", variables), "{\"a\": \"<|x|>\"}");
  EXPECT_EQ(trust("{{ ['<|x|>'] }}{{ 5 }}{{ true }}", variables), "['<|x|>']5True");
  EXPECT_EQ(trust("{{ (u ~ '\n<')|indent(2) }}", variables), "us er[\n  <]");
  EXPECT_EQ(trust("{% for c in '<' ~ u %}{{ c }}{% endfor %}", variables), "[<]us er");
}

TEST(JinjaTrust, AnEmptyTextOfTheRequestKeepsTrustedHalvesApart) {
  const Variables variables = {
      {"e", Value::untrusted("")}, {"s", Value::untrusted("  ")}, {"n", Value::none()}};
  EXPECT_EQ(trust("<|{{ e }}a|>", variables), "[<|][a|>]");
  EXPECT_EQ(trust("{{ '<|' + e + 'a|>' }}", variables), "[<|][a|>]");
  EXPECT_EQ(trust("{{ '<|' ~ (e ~ e) ~ 'a|>' }}", variables), "[<|][a|>]");
  EXPECT_EQ(trust("<|{{ s|trim }}a|>", variables), "[<|][a|>]");
  EXPECT_EQ(trust("<|{{ s[0:0] }}a|>", variables), "[<|][a|>]");
  EXPECT_EQ(trust("<|{{ missing }}a|>", variables), "[<|][a|>]");
  EXPECT_EQ(trust("{{ ('<|' ~ e ~ 'a|>')[0:9] }}", variables), "[<|][a|>]");
  EXPECT_EQ(trust("{% set x %}<|{{ e }}a|>{% endset %}{{ 'q' ~ x }}", variables), "[q<|][a|>]");
  EXPECT_EQ(trust("{{ ['<|', e, 'a|>']|join }}", variables), "[<|][a|>]");
  EXPECT_EQ(trust("<|{{ '' }}a|>", variables), "[<|a|>]");
}

// Whatever a template does with a text, each byte of the request's stays out of the trusted spans: the
// request's bytes are capitals here, the template's are not.
RC_GTEST_PROP(JinjaTrust, NoOperationTrustsAByteOfTheRequest, ()) {
  static const std::vector<std::string> kSteps = {"x ~ '<|'",
                                                  "'|>' ~ x",
                                                  "x + 'ab'",
                                                  "x[1:]",
                                                  "x[:-1]",
                                                  "x[::-1]",
                                                  "x|trim",
                                                  "x|replace('b', 'q')",
                                                  "x|replace('A', 'start')",
                                                  "x.split('b')|join('<')",
                                                  "x.split()|join",
                                                  "x|indent(1, true)",
                                                  "x.strip('<a')",
                                                  "'%s|>' % x",
                                                  "'<|{}|>'.format(x)",
                                                  "x|list|join('|')",
                                                  "[x, 'c']|join('-')",
                                                  "x|string",
                                                  "(x ~ e ~ x)[2:7]",
                                                  "x|reverse",
                                                  "[x]|first",
                                                  "{'k': x}.k",
                                                  "x|default('d')",
                                                  "x.removeprefix('<')",
                                                  "x|trim('|')",
                                                  "x.splitlines()|join"};
  const auto user = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ABCD \n")));
  std::string source = "{% set x = u %}";
  const auto steps = *rc::gen::inRange(0, 12);
  for (int i = 0; i < steps; ++i) source += "{% set x = " + *rc::gen::elementOf(kSteps) + " %}";
  source += "<|start|>{{ x }}<|end|>";
  const auto rendered = render(source, {{"u", Value::untrusted(user)}, {"e", Value::untrusted("")}});
  RC_ASSERT(rendered.ok());
  std::size_t last = 0;
  for (const TextSpan& span : rendered->trusted) {
    RC_ASSERT(span.begin >= last && span.end > span.begin && span.end <= rendered->text.size());
    last = span.end;
    for (std::size_t i = span.begin; i < span.end; ++i)
      RC_ASSERT(rendered->text[i] < 'A' || rendered->text[i] > 'D');
  }
}

TEST(Jinja, OneTemplateServesManyRenderings) {
  const auto parsed =
      JinjaTemplate::parse("{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}").value();
  EXPECT_EQ(parsed.render({})->text, "1");
  EXPECT_EQ(parsed.render({})->text, "1");
}

}  // namespace
}  // namespace nibble
