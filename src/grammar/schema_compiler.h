// The values of a JSON schema as symbols of a grammar that is being made, of which they may be a part.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/schema_facts.h"
#include "grammar/symbols.h"

namespace nibble {

// What it makes lies in `symbols`; those, the schema and the limits outlive it.
class SchemaCompiler {
 public:
  SchemaCompiler(Symbols& symbols, JsonValue schema, const SchemaOptions& options,
                 const CompileLimits& limits);

  // Every string and every name is, between its quotes, a text of this language as well.
  void hold_strings_to(Language inside) { inside_ = inside; }
  SchemaReader& reader() { return reader_; }
  // The values of these types that all the terms take.
  Result<SymbolId> compile(const Terms& terms, JsonTypes types = kAllTypes);

 private:
  SymbolId symbol(Terms terms);
  Status compile_waiting();
  Result<SymbolId> value(const Terms& terms, JsonTypes types);
  Status add(const Facts& facts, std::vector<Language>& texts, std::vector<SymbolId>& others);
  Language number(const Facts& facts);
  Language given(JsonValue value);
  Language key(std::string_view name);
  Status add_object(const Facts& facts, std::vector<SymbolId>& others);
  template <class HasName>
  SymbolId asked_symbol(const Facts& facts, Terms terms, AskedSet as, const HasName& has_name);
  Status add_asked_others(const Facts& facts, Language names, const Terms& terms, AskedMembers& asked);
  Status add_others(const Facts& facts, Language declared, ObjectShape& object);
  Status add_array(const Facts& facts, std::vector<SymbolId>& others);
  SymbolId element_symbol(const Facts& facts, std::size_t place, Terms also);
  SymbolId counted_symbol(const Facts& facts, std::size_t place, std::uint32_t set);
  Status count_elements(const Facts& facts, std::size_t first, ArrayShape& array);
  Status keep_apart(const Facts& facts, ArrayShape& array);
  Language one_spelling_of_numbers();
  Language held(Language inside) {
    return inside_ == kEverything ? inside : symbols_.languages.all_of({inside, inside_});
  }

  Symbols& symbols_;
  SchemaReader reader_;
  Language inside_ = kEverything;
  Language blank_ = kEmptyText;  // what may part brackets and members
  Language quote_ = kNothing, comma_ = kNothing, colon_ = kNothing;
  Language any_character_ = kNothing, canonical_ = kNothing;
  std::map<Terms, SymbolId> known_;
  std::unordered_map<std::string, Language> keys_;  // of names that many objects have
  std::vector<std::pair<Terms, SymbolId>> waiting_;
  std::size_t done_ = 0;
  std::size_t most_ways_ = 0;  // to read an object
  std::string asked_path_;     // of the first keyword whose opposite asked for a member; empty: none
};

}  // namespace nibble
