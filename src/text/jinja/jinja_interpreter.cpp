// Statements, scopes and calls. Expressions are in jinja_expressions.cpp.
#include "text/jinja/jinja_interpreter.h"

#include <algorithm>

#include "text/jinja/jinja_filters.h"

namespace nibble::jinja {

Status fault(std::string what) { return invalid_argument(std::move(what)); }

void Frame::set(Symbol symbol, Value value) {
  for (auto& [name, old] : variables) {
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(symbol, std::move(value));
}

Result<Text> Interpreter::run(const std::vector<std::pair<std::string, Value>>& variables) {
  Frame root;
  static constexpr std::pair<std::string_view, Function> kFunctions[] = {
      {"range", Function::range},
      {"dict", Function::dict},
      {"namespace", Function::namespace_},
      {"raise_exception", Function::raise_exception},
      {"strftime_now", Function::strftime_now}};
  for (const auto& [name, function] : kFunctions) {
    if (const auto symbol = parsed_.symbols.find(name); symbol != parsed_.symbols.end()) {
      root.set(symbol->second, Value::function(function));
    }
  }
  for (const auto& [name, value] : variables) {
    if (const auto symbol = parsed_.symbols.find(name); symbol != parsed_.symbols.end()) {
      root.set(symbol->second, value);
    }
  }
  Text out;
  NIBBLE_ASSIGN([[maybe_unused]] const Flow flow, execute(parsed_.body, root, out));
  return out;
}

// --- Limits

Status Interpreter::spend(std::size_t steps) {
  steps_ += std::min(steps, settings_.max_steps + 1);
  if (steps_ > settings_.max_steps) {
    return resource_exhausted("the template takes more than " + std::to_string(settings_.max_steps) +
                              " steps for this conversation");
  }
  return {};
}

Status Interpreter::spend_on_search(std::size_t text_bytes, std::size_t needle_bytes) {
  return spend(text_bytes / 8 * (needle_bytes / 64 + 1));
}

Status Interpreter::located(const Status& status, int line) {
  // The innermost node names the line; nothing catches a fault on its way out.
  if (std::exchange(located_, true)) return status;
  return status.with_context("chat template line " + std::to_string(line));
}

Result<Value> Interpreter::make_text(Text text) {
  if (text.size() > settings_.max_text_bytes) {
    return resource_exhausted("a text grows beyond " + std::to_string(settings_.max_text_bytes) + " bytes");
  }
  NIBBLE_RETURN_IF_ERROR(spend(text.size() / 8));
  return Value::text(std::move(text));
}

Result<Value> Interpreter::make_list(std::vector<Value> items, bool tuple) {
  NIBBLE_RETURN_IF_ERROR(spend(items.size()));
  return Value::list(std::move(items), tuple);
}

Result<Value> Interpreter::make_dict(Dict dict) {
  NIBBLE_RETURN_IF_ERROR(spend(dict.entries.size()));
  return Value::dict(std::move(dict));
}

Status Interpreter::write(const Text& text, Text& out) {
  if (text.size() + out.size() > settings_.max_text_bytes) {
    return resource_exhausted("the prompt grows beyond " + std::to_string(settings_.max_text_bytes) +
                              " bytes");
  }
  NIBBLE_RETURN_IF_ERROR(spend(text.size() / 8));
  out.append(text);
  return {};
}

// --- Statements

class Interpreter::Level {
 public:
  explicit Level(int& level) : level_(++level) {}
  ~Level() { --level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& level_;
};

Result<Interpreter::Flow> Interpreter::execute(const Block& block, Frame& frame, Text& out) {
  const Level level(level_);
  if (level_ > settings_.max_depth) return resource_exhausted("macros call each other too deeply");
  for (const Statement& statement : block) {
    NIBBLE_RETURN_IF_ERROR(spend(1));
    auto flow = execute(statement, frame, out);
    if (!flow.ok()) return located(flow.status(), statement.line);
    if (*flow != Flow::next) return flow;
  }
  return Flow::next;
}

Result<Interpreter::Flow> Interpreter::execute(const Statement& statement, Frame& frame, Text& out) {
  switch (statement.kind) {
    case Statement::Kind::data: NIBBLE_RETURN_IF_ERROR(write(statement.text, out)); break;
    case Statement::Kind::output: {
      NIBBLE_ASSIGN(const Value value, evaluate(*statement.expressions[0], frame));
      NIBBLE_ASSIGN(const Text text, text_of(value));
      NIBBLE_RETURN_IF_ERROR(write(text, out));
      break;
    }
    case Statement::Kind::if_: return execute_if(statement, frame, out);
    case Statement::Kind::for_: return execute_for(statement, frame, out);
    case Statement::Kind::set: {
      NIBBLE_ASSIGN(Value value, evaluate(*statement.expressions[0], frame));
      NIBBLE_RETURN_IF_ERROR(assign(statement.target, std::move(value), frame));
      break;
    }
    case Statement::Kind::set_block: NIBBLE_RETURN_IF_ERROR(set_block(statement, frame)); break;
    case Statement::Kind::macro: frame.set(statement.macro->symbol, define(*statement.macro, frame)); break;
    case Statement::Kind::call_block: NIBBLE_RETURN_IF_ERROR(call_block(statement, frame, out)); break;
    case Statement::Kind::filter_block: {
      Text body;
      NIBBLE_ASSIGN([[maybe_unused]] const Flow flow, execute_inner(statement.blocks[0], frame, body));
      const Value text = Value::text(std::move(body));
      NIBBLE_ASSIGN(const Value filtered, evaluate_filter(*statement.expressions[0], &text, frame));
      NIBBLE_ASSIGN(const Text result, text_of(filtered));
      NIBBLE_RETURN_IF_ERROR(write(result, out));
      break;
    }
    case Statement::Kind::with: return with(statement, frame, out);
    case Statement::Kind::scope: return execute_inner(statement.blocks[0], frame, out);
    case Statement::Kind::break_: return Flow::break_;
    case Statement::Kind::continue_: return Flow::continue_;
  }
  return Flow::next;
}

Result<Interpreter::Flow> Interpreter::execute_if(const Statement& statement, Frame& frame, Text& out) {
  for (std::size_t i = 0; i < statement.expressions.size(); ++i) {
    NIBBLE_ASSIGN(const Value condition, evaluate(*statement.expressions[i], frame));
    if (condition.truthy()) return execute(statement.blocks[i], frame, out);
  }
  if (statement.blocks.size() > statement.expressions.size())
    return execute(statement.blocks.back(), frame, out);
  return Flow::next;
}

void Interpreter::leave(std::unique_ptr<Frame> frame) {
  if (frame->captured) captured_.push_back(std::move(frame));
}

Result<Interpreter::Flow> Interpreter::execute_inner(const Block& block, Frame& frame, Text& out) {
  auto inner = std::make_unique<Frame>();
  inner->parent = &frame;
  auto flow = execute(block, *inner, out);
  leave(std::move(inner));
  return flow;
}

Result<Interpreter::Flow> Interpreter::execute_for(const Statement& statement, Frame& frame, Text& out) {
  NIBBLE_ASSIGN(const Value over, evaluate(*statement.expressions[0], frame));
  NIBBLE_ASSIGN(std::vector<Value> items, iterate(over));
  NIBBLE_RETURN_IF_ERROR(spend(items.size()));
  if (statement.expressions[1]) {
    std::vector<Value> chosen;
    for (Value& item : items) {
      Frame test;
      test.parent = &frame;
      NIBBLE_RETURN_IF_ERROR(assign(statement.target, item, test));
      NIBBLE_ASSIGN(const Value keep, evaluate(*statement.expressions[1], test));
      if (keep.truthy()) chosen.push_back(std::move(item));
    }
    items = std::move(chosen);
  }
  if (items.empty()) {
    if (statement.blocks.size() > 1) return execute_inner(statement.blocks[1], frame, out);
    return Flow::next;
  }
  const auto loop = std::make_shared<Loop>();
  for (const Value& item : items) loop->extent.hold(item.extent());
  loop->items = std::move(items);
  const auto loop_symbol = parsed_.symbols.find("loop");
  for (; loop->index < loop->items.size(); ++loop->index) {
    auto body = std::make_unique<Frame>();
    body->parent = &frame;
    NIBBLE_RETURN_IF_ERROR(assign(statement.target, loop->items[loop->index], *body));
    if (loop_symbol != parsed_.symbols.end()) {
      body->set(loop_symbol->second, Value::of(std::shared_ptr<const Loop>(loop)));
    }
    auto flow = execute(statement.blocks[0], *body, out);
    leave(std::move(body));
    if (!flow.ok()) return flow.status();
    if (*flow == Flow::break_) break;
  }
  return Flow::next;
}

Status Interpreter::assign(const Target& target, Value value, Frame& frame) {
  if (target.is_tuple) {
    NIBBLE_ASSIGN(std::vector<Value> items, iterate(value));
    if (items.size() != target.parts.size()) {
      return fault(std::to_string(items.size()) + " values cannot be assigned to " +
                   std::to_string(target.parts.size()) + " names");
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      NIBBLE_RETURN_IF_ERROR(assign(target.parts[i], std::move(items[i]), frame));
    }
    return {};
  }
  if (target.attribute.empty()) {
    frame.set(target.symbol, std::move(value));
    return {};
  }
  for (const Frame* outer = &frame; outer != nullptr; outer = outer->parent) {
    for (const auto& [symbol, holder] : outer->variables) {
      if (symbol != target.symbol) continue;
      if (!holder.is(Type::namespace_)) break;
      if (target.attribute[0] == '_') return fault("a namespace's attribute may not begin with '_'");
      holder.as_namespace().attributes.set(Value::trusted(target.attribute), std::move(value));
      return {};
    }
  }
  return fault("'" + target.name + "' is no namespace, so '" + target.attribute + "' cannot be set");
}

Status Interpreter::set_block(const Statement& statement, Frame& frame) {
  Text body;
  NIBBLE_ASSIGN([[maybe_unused]] const Flow flow, execute_inner(statement.blocks[0], frame, body));
  NIBBLE_ASSIGN(Value value, make_text(std::move(body)));
  if (statement.expressions[0]) {
    NIBBLE_ASSIGN(value, evaluate_filter(*statement.expressions[0], &value, frame));
  }
  return assign(statement.target, std::move(value), frame);
}

Result<Interpreter::Flow> Interpreter::with(const Statement& statement, Frame& frame, Text& out) {
  auto inner = std::make_unique<Frame>();
  inner->parent = &frame;
  for (const auto& [target, expr] : statement.bindings) {
    NIBBLE_ASSIGN(Value value, evaluate(*expr, frame));
    NIBBLE_RETURN_IF_ERROR(assign(target, std::move(value), *inner));
  }
  auto flow = execute(statement.blocks[0], *inner, out);
  leave(std::move(inner));
  return flow;
}

Value Interpreter::define(const MacroDefinition& definition, Frame& frame) {
  for (Frame* outer = &frame; outer != nullptr; outer = outer->parent) outer->captured = true;
  macros_.push_back(std::make_unique<Macro>(Macro{&definition, &frame}));
  return Value::of(macros_.back().get());
}

Status Interpreter::call_block(const Statement& statement, Frame& frame, Text& out) {
  const Expr& call_expr = *statement.expressions[0];
  NIBBLE_ASSIGN(const Value callee, evaluate(*call_expr.args[0], frame));
  NIBBLE_ASSIGN(Arguments arguments, evaluate_arguments(call_expr, frame));
  arguments.named.emplace_back("caller", define(*statement.macro, frame));
  NIBBLE_ASSIGN(const Value value, call(callee, std::move(arguments)));
  NIBBLE_ASSIGN(const Text text, text_of(value));
  return write(text, out);
}

// --- Calls

Result<Value> Interpreter::call(const Value& callee, Arguments arguments) {
  switch (callee.type()) {
    case Type::macro: return call_macro(callee.as_macro(), std::move(arguments));
    case Type::function: return call_function(callee.as_function(), std::move(arguments));
    case Type::method: {
      const Method& method = callee.as_method();
      return call_method(*this, method.self, method.name, arguments);
    }
    case Type::undefined: return fault(callee.undefined_what());
    default: return fault("a value of type " + std::string(callee.type_name()) + " cannot be called");
  }
}

Result<Value> Interpreter::call_macro(const Macro& macro, Arguments arguments) {
  const MacroDefinition& definition = *macro.definition;
  if (arguments.positional.size() > definition.parameters.size()) {
    return fault("the macro '" + definition.name + "' takes at most " +
                 std::to_string(definition.parameters.size()) + " arguments");
  }
  auto frame = std::make_unique<Frame>();
  frame->parent = macro.closure;
  std::size_t taken = 0;
  const auto named = [&](const std::string& name) -> Value* {
    for (auto& [given, value] : arguments.named) {
      if (given == name) return &value;
    }
    return nullptr;
  };
  for (std::size_t i = 0; i < definition.parameters.size(); ++i) {
    const Parameter& parameter = definition.parameters[i];
    Value* by_name = named(parameter.name);
    if (i < arguments.positional.size()) {
      if (by_name != nullptr)
        return fault("the macro '" + definition.name + "' gets '" + parameter.name + "' twice");
      frame->set(parameter.symbol, std::move(arguments.positional[i]));
    } else if (by_name != nullptr) {
      frame->set(parameter.symbol, std::move(*by_name));
      ++taken;
    } else if (parameter.fallback) {
      // A default sees the parameters before it.
      NIBBLE_ASSIGN(Value value, evaluate(*parameter.fallback, *frame));
      frame->set(parameter.symbol, std::move(value));
    } else {
      frame->set(parameter.symbol, Value::undefined("parameter '" + parameter.name + "' was not provided"));
    }
  }
  if (Value* caller = named("caller"); caller != nullptr) {
    if (const auto symbol = parsed_.symbols.find("caller"); symbol != parsed_.symbols.end()) {
      frame->set(symbol->second, std::move(*caller));
    }
    ++taken;
  }
  if (taken != arguments.named.size())
    return fault("the macro '" + definition.name + "' has no such parameter");
  Text body;
  auto flow = execute(definition.body, *frame, body);
  leave(std::move(frame));
  if (!flow.ok()) return flow.status();
  return make_text(std::move(body));
}

Result<Value> Interpreter::call_function(Function function, Arguments arguments) {
  switch (function) {
    case Function::range: {
      std::int64_t bounds[3] = {0, 0, 1};
      const auto& given = arguments.positional;
      if (given.empty() || given.size() > 3 || !arguments.named.empty())
        return fault("range takes 1 to 3 numbers");
      for (std::size_t i = 0; i < given.size(); ++i) {
        const auto number = given[i].to_integer();
        if (!number) return fault("range takes integers");
        bounds[given.size() == 1 ? 1 : i] = *number;
      }
      if (bounds[2] == 0) return fault("range has a step of 0");
      std::vector<Value> items;
      constexpr std::size_t kMaxRange = 100'000;  // as in the sandbox of jinja2
      for (std::int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
        if (items.size() >= kMaxRange) return fault("range has more than 100,000 numbers");
        items.push_back(Value::integer(i));
        if (__builtin_add_overflow(i, bounds[2], &i)) break;
      }
      return make_list(std::move(items));
    }
    case Function::dict:
    case Function::namespace_: {
      Dict entries;
      if (arguments.positional.size() > 1) return fault("at most one mapping without a name is taken");
      if (!arguments.positional.empty()) {
        const Value& first = arguments.positional[0];
        if (!first.is(Type::dict)) return fault("a mapping is taken, not " + std::string(first.type_name()));
        entries.entries = first.as_dict().entries;
      }
      for (auto& [name, value] : arguments.named) entries.set(Value::trusted(name), std::move(value));
      if (function == Function::dict) return make_dict(std::move(entries));
      for (const auto& [key, value] : entries.entries) {
        if (key.is(Type::text) && key.bytes().starts_with('_')) {
          return fault("a namespace's attribute may not begin with '_'");
        }
      }
      NIBBLE_RETURN_IF_ERROR(spend(entries.entries.size() + 8));
      namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(entries)}));
      return Value::of(namespaces_.back().get());
    }
    case Function::raise_exception: {
      NIBBLE_ASSIGN(const Bound bound, Bound::bind("raise_exception", arguments, {"message"}));
      NIBBLE_ASSIGN(const Value* message, bound.required(0));
      NIBBLE_ASSIGN(const Text text, text_of(*message));
      return fault("the template refuses the conversation: " + text.bytes());
    }
    case Function::strftime_now: {
      NIBBLE_ASSIGN(const Bound bound, Bound::bind("strftime_now", arguments, {"format"}));
      NIBBLE_ASSIGN(const Text* format, bound.required_text(0));
      char buffer[256];
      const std::size_t length =
          std::strftime(buffer, sizeof buffer, format->bytes().c_str(), &settings_.now);
      return make_text_from_request(std::string(buffer, length));
    }
  }
  return fault("unknown function");
}

}  // namespace nibble::jinja
