// The values of a template: Python's, as far as chat templates use them.
//
// Values are immutable once made (as in the sandbox that transformers renders with) except namespaces, so
// sharing is safe and nothing can contain itself: a list's nesting is known when it is made and bounded,
// which keeps every recursion over a value, its destruction included, shallow. Namespaces, loops and macros
// live in the interpreter; a Value only points to them and must not outlive the rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/jinja/jinja_text.h"

namespace nibble::jinja {

class Value;
struct Dict;
struct Namespace;
struct Macro;
struct Loop;
enum class Function : std::uint8_t { range, dict, namespace_, raise_exception, strftime_now };

// Bounds of one value. A value may hold another many times over, so its size as written out (weight: one a
// value and one for every 8 bytes of text) is kept beside its nesting.
inline constexpr int kMaxNesting = 100;
inline constexpr std::size_t kMaxWeight = std::size_t{16} << 20;
struct Extent {
  int nesting = 0;
  std::size_t weight = 1;
  void hold(const Extent& child);
};

struct Undefined {
  std::shared_ptr<const std::string> what;  // "'message' has no attribute 'name'"
};
struct None {
  bool operator==(const None&) const = default;
};
struct List {
  std::vector<Value> items;
  bool tuple = false;
  Extent extent = {};  // set by Value::list
};
// A method taken from its object: message.items, text.split.
struct Method;

enum class Type : std::uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  text,
  list,
  dict,
  namespace_,
  macro,
  function,
  method,
  loop
};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  static Value undefined(std::string what);
  static Value none() { return Value(Data(None{})); }
  static Value boolean(bool b) { return Value(Data(b)); }
  static Value integer(std::int64_t i) { return Value(Data(i)); }
  static Value real(double d) { return Value(Data(d)); }
  static Value text(Text text) { return Value(Data(std::make_shared<const Text>(std::move(text)))); }
  static Value trusted(std::string bytes) { return text(Text::from_template(std::move(bytes))); }
  static Value untrusted(std::string bytes) { return text(Text::from_request(std::move(bytes))); }
  static Value function(Function f) { return Value(Data(f)); }
  static Value of(Namespace* n) { return Value(Data(n)); }
  static Value of(const Macro* m) { return Value(Data(m)); }
  static Value of(std::shared_ptr<const Loop> l) { return Value(Data(std::move(l))); }
  static Value of(std::shared_ptr<const Method> m) { return Value(Data(std::move(m))); }
  // Refused beyond kMaxNesting and kMaxWeight.
  static Result<Value> list(std::vector<Value> items, bool tuple = false);
  static Result<Value> dict(Dict dict);
  // Everything in a client's JSON is the request's, its keys too.
  static Result<Value> from_json(const JsonValue& json);

  Type type() const { return static_cast<Type>(data_.index()); }
  std::string_view type_name() const;  // as Python says it, for messages
  bool is(Type t) const { return type() == t; }
  bool is_number() const;  // a boolean is one, as in Python

  // The caller has looked at type().
  bool as_bool() const { return std::get<bool>(data_); }
  std::int64_t as_integer() const { return std::get<std::int64_t>(data_); }
  double as_real() const { return std::get<double>(data_); }
  const Text& as_text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& bytes() const { return as_text().bytes(); }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& as_namespace() const { return *std::get<Namespace*>(data_); }
  const Macro& as_macro() const { return *std::get<const Macro*>(data_); }
  Function as_function() const { return std::get<Function>(data_); }
  const Method& as_method() const { return *std::get<std::shared_ptr<const Method>>(data_); }
  const Loop& as_loop() const { return *std::get<std::shared_ptr<const Loop>>(data_); }
  const std::string& undefined_what() const;

  bool truthy() const;
  Extent extent() const;
  // The integer of an integer or a boolean, the double of any number.
  std::optional<std::int64_t> to_integer() const;
  std::optional<double> to_real() const;

  // ==; values of different kinds are unequal, numbers compare across kinds.
  friend bool equal(const Value& a, const Value& b);
  // <0, 0, >0; nothing if Python refuses to order them.
  friend std::optional<int> order(const Value& a, const Value& b);

 private:
  using Data =
      std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const Text>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace*, const Macro*,
                   Function, std::shared_ptr<const Method>, std::shared_ptr<const Loop>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

bool equal(const Value& a, const Value& b);
std::optional<int> order(const Value& a, const Value& b);

// Entries in the order they were written; the last of equal keys wins, at the first's place.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  Extent extent = {};  // set by Value::dict

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};

struct Namespace {
  Dict attributes;
};

struct Method {
  Value self;
  std::string name;
};

// State of a running for loop; `loop` in a template.
struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;
  Extent extent = {};
};

// str(value) and repr(value). Text keeps its trust in str(); anything else that is written out has none.
Text to_text(const Value& value);
std::string repr(const Value& value);
std::string repr_real(double value);

struct ToJson {
  bool ensure_ascii = false;
  std::optional<std::string> indent;                              // of one level
  std::optional<std::pair<std::string, std::string>> separators;  // between items, after a key
  bool sort_keys = false;
};
// json.dumps. The result is not trusted, whatever went in.
Result<std::string> to_json(const Value& value, const ToJson& options);

}  // namespace nibble::jinja
