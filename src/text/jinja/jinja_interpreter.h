// Runs a parsed template over values. Nothing outside of it can be reached: no files, no clock but the one
// injected, and every step, byte and level of recursion is counted.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/jinja.h"
#include "text/jinja/jinja_ast.h"
#include "text/jinja/jinja_value.h"

namespace nibble::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Variables of a block. `loop`, loop targets, macro parameters and `set` write here; reading goes outwards.
struct Frame {
  std::vector<std::pair<Symbol, Value>> variables;
  Frame* parent = nullptr;
  bool captured = false;  // a macro was defined in it or inside of it: it must outlive its block

  void set(Symbol symbol, Value value);
};

// A macro as a value: its text and the variables it sees.
struct Macro {
  const MacroDefinition* definition = nullptr;
  Frame* closure = nullptr;
};

class Interpreter {
 public:
  Interpreter(const Template& parsed, const Settings& settings) : parsed_(parsed), settings_(settings) {}

  Result<Text> run(const std::vector<std::pair<std::string, Value>>& variables);

  // --- What filters, tests and methods need

  Status spend(std::size_t steps);
  // For a search that may compare all of `needle` at every byte of `text`.
  Status spend_on_search(std::size_t text_bytes, std::size_t needle_bytes);
  // Every text that an operation makes passes here.
  Result<Value> make_text(Text text);
  Result<Value> make_text_from_request(std::string bytes) {
    return make_text(Text::from_request(std::move(bytes)));
  }
  Result<Value> make_list(std::vector<Value> items, bool tuple = false);
  Result<Value> make_dict(Dict dict);
  // What a for loop over the value sees.
  Result<std::vector<Value>> iterate(const Value& value);
  Result<Value> get_attribute(const Value& object, const std::string& name);
  Result<Value> get_item(const Value& object, const Value& key);
  Result<bool> contains(const Value& container, const Value& item);
  // str(value), its length paid for.
  Result<Text> text_of(const Value& value);
  Result<Value> call(const Value& callee, Arguments arguments);
  const Settings& settings() const { return settings_; }

 private:
  enum class Flow { next, break_, continue_ };
  class Level;

  Status located(const Status& status, int line);
  Result<Flow> execute(const Block& block, Frame& frame, Text& out);
  Result<Flow> execute(const Statement& statement, Frame& frame, Text& out);
  Result<Flow> execute_if(const Statement& statement, Frame& frame, Text& out);
  Result<Flow> execute_for(const Statement& statement, Frame& frame, Text& out);
  Result<Flow> execute_inner(const Block& block, Frame& frame, Text& out);
  Status set_block(const Statement& statement, Frame& frame);
  Status call_block(const Statement& statement, Frame& frame, Text& out);
  Result<Flow> with(const Statement& statement, Frame& frame, Text& out);
  Status assign(const Target& target, Value value, Frame& frame);
  Status write(const Text& text, Text& out);
  Value define(const MacroDefinition& definition, Frame& frame);
  void leave(std::unique_ptr<Frame> frame);

  Result<Value> evaluate(const Expr& expr, Frame& frame);
  Result<Value> evaluate_node(const Expr& expr, Frame& frame);
  Result<Value> look_up(const Expr& expr, const Frame& frame) const;
  Result<std::vector<Value>> evaluate_all(const std::vector<ExprPtr>& args, std::size_t from, Frame& frame);
  Result<Arguments> evaluate_arguments(const Expr& expr, Frame& frame);
  Result<Value> evaluate_dict(const Expr& expr, Frame& frame);
  Result<Value> evaluate_slice(const Expr& expr, Frame& frame);
  Result<Value> evaluate_filter(const Expr& expr, const Value* input, Frame& frame);
  Result<Value> evaluate_compare(const Expr& expr, Frame& frame);
  Result<bool> compare(Expr::Operator op, const Value& left, const Value& right);
  Result<Value> arithmetic(Expr::Operator op, const Value& left, const Value& right);
  Result<Value> integer_arithmetic(Expr::Operator op, std::int64_t left, std::int64_t right);
  Result<Value> repeat(const Value& sequence, std::int64_t times);
  Result<Value> negate(const Value& value, bool minus);

  Result<Value> call_macro(const Macro& macro, Arguments arguments);
  Result<Value> call_function(Function function, Arguments arguments);

  const Template& parsed_;
  const Settings& settings_;
  std::size_t steps_ = 0;
  int level_ = 0;
  bool located_ = false;  // a fault is on its way out and names its line
  // What values only point to; lives as long as the rendering.
  std::vector<std::unique_ptr<Frame>> captured_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::vector<std::unique_ptr<Macro>> macros_;
};

// Slice bounds of a sequence of `length` as Python resolves them: the indices begin, begin + step, ...
Result<std::vector<std::size_t>> slice_indices(const Value& begin, const Value& end, const Value& step,
                                               std::size_t length);

// Whether `name` is a method of the value's type, one that a template may call.
bool has_method(const Value& object, std::string_view name);
Result<Value> call_method(Interpreter& interpreter, const Value& self, const std::string& name,
                          const Arguments& arguments);
// text % arguments
Result<Value> percent_format(Interpreter& interpreter, const Text& format,
                             const std::vector<Value>& arguments);

// A wrong type or value inside of an expression; the line is added where the statement is known.
Status fault(std::string what);

}  // namespace nibble::jinja
