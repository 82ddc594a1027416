// A parsed template. Names of variables are numbers (symbols) so that a lookup compares integers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/jinja_value.h"

namespace nibble::jinja {

using Symbol = std::uint32_t;
struct Filter;
struct Test;

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

// Which fields an expression uses is said beside its kind.
struct Expr {
  enum class Kind : std::uint8_t {
    constant,     // value
    name,         // symbol, text
    list,         // args
    tuple,        // args
    dict,         // args: key, value, key, value
    attribute,    // args[0] . text
    item,         // args[0] [ args[1] ]
    slice,        // args[0] [ args[1] : args[2] : args[3] ], absent bounds are null
    call,         // args[0] ( args[1..], keywords )
    filter,       // args[0] | filter ( args[1..], keywords ); args[0] is null in a filter block
    test,         // args[0] is test ( args[1..], keywords )
    negate,       // args[0]
    plus,         // args[0]
    not_,         // args[0]
    and_,         // args[0], args[1]
    or_,          // args[0], args[1]
    conditional,  // args[0] if args[1] else args[2]; no else: null
    concat,       // args joined by ~
    compare,      // args[0] operators[0] args[1] operators[1] args[2] ...
    binary,       // args[0] operators[0] args[1]
  };
  enum class Operator : std::uint8_t {
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    in,
    not_in
  };

  Kind kind = Kind::constant;
  int line = 1;
  int height = 1;  // of this tree; bounded, so that walking it is
  Symbol symbol = 0;
  Value value;
  std::string text;
  const Filter* filter = nullptr;
  const Test* test = nullptr;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  std::vector<Operator> operators;
};

// What an assignment writes to: a variable, a namespace's attribute, or a tuple of targets.
struct Target {
  Symbol symbol = 0;
  std::string name;
  std::string attribute;  // of the namespace `symbol`, if not empty
  std::vector<Target> parts;
  bool is_tuple = false;
};

struct Parameter {
  Symbol symbol = 0;
  std::string name;
  ExprPtr fallback;  // null: none
};

struct Statement;
struct MacroDefinition;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind : std::uint8_t {
    data,          // text
    output,        // expressions[0]
    if_,           // if expressions[i] blocks[i] ...; one block more is the else
    for_,          // for target in expressions[0] if expressions[1] (may be null): blocks[0], else blocks[1]
    set,           // target = expressions[0]
    set_block,     // target = blocks[0], through filter expressions[0] (may be null)
    macro,         // macro
    call_block,    // expressions[0] is the call; macro is its caller
    filter_block,  // blocks[0] through filter expressions[0]
    with,          // bindings around blocks[0]
    scope,         // blocks[0] with variables of its own
    break_,
    continue_,
  };
  Kind kind = Kind::data;
  int line = 1;
  Text text;
  Target target;
  std::vector<ExprPtr> expressions;
  std::vector<Block> blocks;
  std::vector<std::pair<Target, ExprPtr>> bindings;  // of with
  std::shared_ptr<const MacroDefinition> macro;
};

struct MacroDefinition {
  std::string name;
  Symbol symbol = 0;
  std::vector<Parameter> parameters;
  Block body;
};

struct Template {
  Block body;
  std::map<std::string, Symbol, std::less<>> symbols;
};

}  // namespace nibble::jinja
