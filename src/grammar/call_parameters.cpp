#include "grammar/call_parameters.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace nibble {
namespace {

class Writer {
 public:
  Writer(Symbols& symbols, SchemaCompiler& schema, std::string_view function, const OfferedTools& tools,
         const ParameterForm& form, Language values)
      : symbols_(symbols),
        schema_(schema),
        function_(function),
        tools_(tools),
        form_(form),
        values_(values) {}

  // One way in which the schema takes an object.
  Result<SymbolId> object(const Facts& facts) {
    if (facts.values || !facts.excluded.empty() || !facts.some_members.empty())
      return invalid_argument(
          "#: enum, const and not beside it cannot be held to in this model's form of calls");
    NIBBLE_ASSIGN(const std::vector<Name> names, names_of(facts));
    const auto required = std::count_if(names.begin(), names.end(), [](const Name& n) { return n.required; });
    if (facts.least_members > static_cast<std::size_t>(required) || facts.most_members < names.size())
      return invalid_argument(
          "#: minProperties and maxProperties cannot be held to in this model's form of calls; list what is "
          "needed under required");
    std::vector<SymbolId> parts{symbols_.text(kEmptyText)};
    for (const Name& name : names) {
      NIBBLE_ASSIGN(const SymbolId written, argument(facts, name.name));
      parts.push_back(name.required ? written : symbols_.repeat(written, 0, 1));
    }
    return symbols_.sequence(parts);
  }

 private:
  struct Name {
    std::string_view name;
    bool required = false;
  };

  bool can_be_written(std::string_view name) const {
    constexpr std::string_view white = " \t\r\n";
    return !name.empty() && name.find(form_.ends_name) == name.npos &&
           white.find(name.front()) == white.npos && white.find(name.back()) == white.npos;
  }

  Result<std::vector<Name>> names_of(const Facts& facts) {
    std::vector<Name> names;
    const auto add = [&](std::string_view name) {
      const auto is_it = [&](const Name& known) { return known.name == name; };
      if (std::none_of(names.begin(), names.end(), is_it)) names.push_back({.name = name});
    };
    for (const Facts::Members& members : facts.members)
      for (const auto& [name, term] : members.properties) add(name);
    for (const std::string_view name : facts.required) add(name);
    for (Name& name : names)
      name.required =
          std::find(facts.required.begin(), facts.required.end(), name.name) != facts.required.end();
    std::vector<Name> written;
    for (const Name& name : names) {
      NIBBLE_ASSIGN(const bool fits, schema_.reader().name_fits(name.name, facts));
      const Terms terms = schema_.reader().terms_of(facts, name.name);
      const bool allowed = fits && !std::binary_search(terms.begin(), terms.end(), SchemaReader::kFalse);
      if (allowed && can_be_written(name.name)) {
        written.push_back(name);
      } else if (name.required) {
        return invalid_argument("#/required: " + std::string(name.name) +
                                (allowed ? " cannot be written in this model's form of calls"
                                         : " is a property that the schema does not allow"));
      }
    }
    return written;
  }

  Result<SymbolId> argument(const Facts& facts, std::string_view name) {
    const Terms terms = schema_.reader().terms_of(facts, name);
    SymbolId value = kNoSymbol;
    if (const ParameterKind kind = tools_.kind(function_, name); kind == ParameterKind::json) {
      NIBBLE_ASSIGN(value, schema_.compile(terms));
    } else {
      NIBBLE_ASSIGN(const Language bare, bare_text(terms, kind));
      value = symbols_.text(bare);
    }
    const SymbolId parts[] = {symbols_.text(form_.before(name)), value, symbols_.text(form_.behind)};
    return symbols_.sequence(parts);
  }

  // A string without quotes, or null where the reader takes that word for it.
  Result<Language> bare_text(const Terms& terms, ParameterKind kind) {
    Languages& languages = symbols_.languages;
    const bool has_null = kind == ParameterKind::text_or_null;
    NIBBLE_ASSIGN(const std::vector<Facts> ways, schema_.reader().alternatives(terms));
    std::vector<Language> texts;
    bool null = false;
    for (const Facts& way : ways) {
      if (!way.values) {
        if (way.types & kString) texts.push_back(schema_.reader().plain_string(way));
        null = null || (way.types & kNull);
        continue;
      }
      for (const JsonValue value : *way.values) {
        NIBBLE_ASSIGN(const bool fits, schema_.reader().holds(value, way));
        if (fits && value.is_string()) texts.push_back(languages.literal(value.as_string()));
        null = null || (fits && value.is_null());
      }
    }
    Language text = languages.all_of({languages.any_of(texts), values_});
    if (!has_null) return text;
    text = languages.all_of({text, languages.except(languages.literal("null"))});
    return null ? languages.any_of({text, languages.literal("null")}) : text;
  }

  Symbols& symbols_;
  SchemaCompiler& schema_;
  std::string_view function_;
  const OfferedTools& tools_;
  const ParameterForm& form_;
  Language values_;
};

}  // namespace

Result<SymbolId> written_parameters(Symbols& symbols, SchemaCompiler& schema, std::string_view function,
                                    const OfferedTools& tools, const ParameterForm& form, Language values) {
  schema.reader().also_plain();
  schema.hold_strings_to(values);
  Writer writer(symbols, schema, function, tools, form, values);
  NIBBLE_ASSIGN(const std::vector<Facts> ways, schema.reader().alternatives({schema.reader().root()}));
  std::vector<SymbolId> objects;
  for (const Facts& way : ways) {
    if (!(way.types & kObject)) continue;
    NIBBLE_ASSIGN(const SymbolId object, writer.object(way));
    objects.push_back(object);
  }
  if (objects.empty()) return invalid_argument("#: no object fits, and arguments are one");
  return symbols.choice(objects);
}

}  // namespace nibble
