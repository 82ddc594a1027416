#include "checkpoint/name_expression.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace nibble {
namespace {

constexpr std::size_t max_length = 4096;
constexpr std::size_t max_nodes = 4096, max_states = 4096;
// Of nodes, while states are found: in proportion to the text, so that a config takes time in proportion to
// its own. A state is looked up in the time of some.
constexpr std::int64_t visits_a_byte = 1024, visits_a_state = 4;
std::int64_t most_visits(std::string_view text) {
  return visits_a_byte * (static_cast<std::int64_t>(text.size()) + 32);
}
constexpr int max_depth = 32;
constexpr int max_repeats = 64;

using Bytes = std::bitset<256>;

// Of an automaton that may be in several nodes at once.
struct Node {
  enum class Kind : std::uint8_t { bytes, fork, begin, end, match } kind = Kind::match;
  int next = -1, other = -1;  // other: of a fork alone
  Bytes bytes;
};

// What an expression is made of.
struct Term {
  enum class Kind : std::uint8_t { bytes, begin, end, sequence, choice, repeat } kind = Kind::sequence;
  Bytes bytes;
  std::vector<Term> parts;
  int least = 0, most = 0;  // of repeat; most -1: any number
};

Bytes range_of(char first, char last) {
  Bytes bytes;
  for (int c = static_cast<unsigned char>(first); c <= static_cast<unsigned char>(last); ++c)
    bytes.set(static_cast<std::size_t>(c));
  return bytes;
}
Bytes one(char c) { return range_of(c, c); }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  bool takes(std::string_view mark) {
    if (!text_.substr(at_).starts_with(mark)) return false;
    at_ += mark.size();
    return true;
  }
  bool at_end() const { return at_ == text_.size(); }
  // The first thing that was not understood; empty: there was none.
  const std::string& problem() const { return problem_; }

  Term choice(int depth) {
    Term made{.kind = Term::Kind::choice};
    if (depth > max_depth) return fail("nests too deeply");
    do made.parts.push_back(sequence(depth));
    while (problem_.empty() && takes("|"));
    return made.parts.size() == 1 ? std::move(made.parts.front()) : made;
  }

  Term fail(std::string why) {
    if (problem_.empty()) problem_ = std::move(why);
    at_ = text_.size();
    return {};
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  Term sequence(int depth) {
    Term made{.kind = Term::Kind::sequence};
    while (!at_end() && peek() != '|' && peek() != ')') {
      Term part = atom(depth);
      made.parts.push_back(repeated(std::move(part)));
    }
    return made;
  }

  Term repeated(Term part) {
    int least = 0, most = 0;
    if (takes("*")) {
      most = -1;
    } else if (takes("+")) {
      least = 1;
      most = -1;
    } else if (takes("?")) {
      most = 1;
    } else if (peek() == '{') {
      if (!counts(least, most)) return fail("has a { that counts nothing");
    } else {
      return part;
    }
    if (part.kind == Term::Kind::begin || part.kind == Term::Kind::end) return fail("repeats ^ or $");
    takes("?");  // how much is taken is all the same to whether it matches
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') return fail("repeats a repetition");
    Term made{.kind = Term::Kind::repeat, .least = least, .most = most};
    made.parts.push_back(std::move(part));
    return made;
  }

  bool number(int& value) {
    const std::size_t first = at_;
    for (value = 0; peek() >= '0' && peek() <= '9' && value <= max_repeats; ++at_)
      value = value * 10 + (peek() - '0');
    return at_ > first && value <= max_repeats;
  }
  bool counts(int& least, int& most) {
    takes("{");
    if (!number(least)) return false;
    most = least;
    if (takes(",") && peek() != '}' && !number(most)) return false;
    if (text_[at_ - 1] == ',') most = -1;
    return takes("}") && (most < 0 || most >= least);
  }

  Term atom(int depth) {
    const char c = text_[at_++];
    switch (c) {
      case '(': {
        if (peek() == '?' && !takes("?:"))
          return fail("has (?, which is read at its begin alone, as (?=..) and (?!..), or as (?:..)");
        Term inner = choice(depth + 1);
        if (problem_.empty() && !takes(")")) return fail("has a ( without a )");
        return inner;
      }
      case '[': return set();
      case '.': return {.kind = Term::Kind::bytes, .bytes = ~one('\n')};
      case '^': return {.kind = Term::Kind::begin};
      case '$': return {.kind = Term::Kind::end};
      case '\\': return {.kind = Term::Kind::bytes, .bytes = escaped()};
      case '*':
      case '+':
      case '?':
      case '{': return fail("repeats nothing");
      default: return {.kind = Term::Kind::bytes, .bytes = one(c)};
    }
  }

  // Behind a backslash.
  Bytes escaped() {
    const char c = peek();
    const bool is_letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    const Bytes digits = range_of('0', '9'),
                words = digits | range_of('a', 'z') | range_of('A', 'Z') | one('_'),
                spaces = one(' ') | range_of('\t', '\r');
    ++at_;
    switch (c) {
      case 'd': return digits;
      case 'D': return ~digits;
      case 'w': return words;
      case 'W': return ~words;
      case 's': return spaces;
      case 'S': return ~spaces;
      default: break;
    }
    if (at_ > text_.size() || is_letter || digits[static_cast<unsigned char>(c)]) {
      fail("has \\" + (at_ > text_.size() ? std::string() : std::string(1, c)) +
           "; of backslashes those before signs, d, w and s are read");
      return {};
    }
    return one(c);
  }

  Term set() {
    Term made{.kind = Term::Kind::bytes};
    const bool opposite = takes("^");
    for (bool first = true; first || peek() != ']'; first = false) {
      if (at_end()) return fail("has a [ without a ]");
      const char c = text_[at_++];
      if (c == '\\') {
        made.bytes |= escaped();
      } else if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        const char last = text_[at_ + 1];
        if (last == '\\' || static_cast<unsigned char>(last) < static_cast<unsigned char>(c))
          return fail("has a range that is none");
        made.bytes |= range_of(c, last);
        at_ += 2;
      } else {
        made.bytes |= one(c);
      }
      if (!problem_.empty()) return {};
    }
    ++at_;
    if (opposite) made.bytes.flip();
    return made;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string problem_;
};

// Nodes from their end to their begin.
class Builder {
 public:
  int add(Node node) {
    nodes_.push_back(node);
    return static_cast<int>(nodes_.size()) - 1;
  }
  // Terms are counted too: an empty one has no nodes, however often it is repeated.
  bool too_large() const { return nodes_.size() > max_nodes || terms_ > max_nodes; }
  const std::vector<Node>& nodes() const { return nodes_; }

  // The node at which a term begins that goes on at `next`.
  int before(const Term& term, int next) {
    if (++terms_; too_large()) return next;
    switch (term.kind) {
      case Term::Kind::bytes: return add({.kind = Node::Kind::bytes, .next = next, .bytes = term.bytes});
      case Term::Kind::begin: return add({.kind = Node::Kind::begin, .next = next});
      case Term::Kind::end: return add({.kind = Node::Kind::end, .next = next});
      case Term::Kind::sequence:
        for (auto part = term.parts.rbegin(); part != term.parts.rend(); ++part) next = before(*part, next);
        return next;
      case Term::Kind::choice: {
        int begin = before(term.parts.back(), next);
        for (auto part = std::next(term.parts.rbegin()); part != term.parts.rend(); ++part)
          begin = fork(before(*part, next), begin);
        return begin;
      }
      case Term::Kind::repeat: return before_repeat(term, next);
    }
    return next;
  }

 private:
  int fork(int one_way, int other) {
    return add({.kind = Node::Kind::fork, .next = one_way, .other = other});
  }

  int before_repeat(const Term& term, int next) {
    const Term& part = term.parts.front();
    const int past = next;
    if (term.most < 0) {
      const int again = fork(-1, past);
      const int body = before(part, again);
      nodes_[static_cast<std::size_t>(again)].next = body;
      next = again;
    }
    for (int i = term.least; i < term.most; ++i) next = fork(before(part, next), past);
    for (int i = 0; i < term.least; ++i) next = before(part, next);
    return next;
  }

  std::vector<Node> nodes_;
  std::size_t terms_ = 0;
};

using Nodes = std::vector<int>;  // ascending

// What is reached without another byte.
struct Reached {
  Nodes nodes;  // that wait for bytes; none once a name matches whatever follows
  bool matched = false, matched_at_end = false;
};

class Reacher {
 public:
  explicit Reacher(const std::vector<Node>& nodes) : nodes_(nodes), seen_(nodes.size()) {}
  std::int64_t visits() const { return visits_; }

  Reached from(const Nodes& first, bool at_begin) {
    Reached reached;
    ++round_;
    for (const int node : first) open_.emplace_back(node, false);
    visits_ += visits_a_state;
    while (!open_.empty()) {
      const auto [index, ended] = open_.back();
      open_.pop_back();
      ++visits_;
      std::int64_t& seen = seen_[static_cast<std::size_t>(index)][ended ? 1 : 0];
      if (seen == round_) continue;
      seen = round_;
      visit(index, ended, at_begin, reached);
    }
    if (reached.matched) reached.nodes.clear();
    std::sort(reached.nodes.begin(), reached.nodes.end());
    return reached;
  }

 private:
  void visit(int index, bool ended, bool at_begin, Reached& reached) {
    const Node& node = nodes_[static_cast<std::size_t>(index)];
    switch (node.kind) {
      case Node::Kind::bytes:
        if (!ended) reached.nodes.push_back(index);
        return;
      case Node::Kind::fork:
        open_.emplace_back(node.next, ended);
        open_.emplace_back(node.other, ended);
        return;
      case Node::Kind::begin:
        if (at_begin) open_.emplace_back(node.next, ended);
        return;
      case Node::Kind::end: open_.emplace_back(node.next, true); return;
      case Node::Kind::match: (ended ? reached.matched_at_end : reached.matched) = true; return;
    }
  }

  const std::vector<Node>& nodes_;
  // The last round in which a node was reached, where a name need not have ended and where it must.
  std::vector<std::array<std::int64_t, 2>> seen_;
  std::int64_t round_ = 0;
  std::vector<std::pair<int, bool>> open_;
  std::int64_t visits_ = 0;
};

// Numbers kinds of bytes; returns how many there are.
std::size_t tell_apart(const std::vector<Node>& nodes, std::array<std::uint8_t, 256>& kinds) {
  std::size_t count = 1;
  for (const Node& node : nodes) {
    if (node.kind != Node::Kind::bytes) continue;
    std::map<std::pair<int, bool>, std::uint8_t> split;
    for (std::size_t byte = 0; byte < kinds.size(); ++byte) {
      const auto [found, fresh] =
          split.try_emplace({kinds[byte], node.bytes[byte]}, static_cast<std::uint8_t>(split.size()));
      kinds[byte] = found->second;
    }
    count = split.size();
  }
  return count;
}

}  // namespace

// In one state at a time.
struct NameExpression::Automaton {
  static constexpr std::uint16_t matched = 0;  // the state of a name of which enough was seen

  std::array<std::uint8_t, 256> kinds{};  // of bytes: those that no node tells apart are one
  std::size_t kind_count = 0;
  std::vector<std::uint16_t> next;  // [states, kind_count]
  std::vector<bool> ends;           // whether a name that ends in a state matches
  std::uint16_t first = 0;

  static Result<std::shared_ptr<const Automaton>> of(const Term& term, std::int64_t most) {
    Builder builder;
    const int begin = builder.before(term, builder.add({.kind = Node::Kind::match}));
    if (builder.too_large()) return broken_model("is too large");
    auto made = std::make_shared<Automaton>();
    NIBBLE_RETURN_IF_ERROR(made->find_states(builder.nodes(), begin, most));
    return std::shared_ptr<const Automaton>(std::move(made));
  }

  bool matches(std::string_view name) const {
    std::uint16_t state = first;
    for (const char c : name) {
      if (state == matched) return true;
      state = next[state * kind_count + kinds[static_cast<unsigned char>(c)]];
    }
    return state == matched || ends[state];
  }

 private:
  Status find_states(const std::vector<Node>& nodes, int begin, std::int64_t most) {
    kind_count = tell_apart(nodes, kinds);
    std::array<std::size_t, 256> byte_of{};
    for (std::size_t byte = 0; byte < kinds.size(); ++byte) byte_of[kinds[byte]] = byte;
    Reacher reacher(nodes);
    std::map<std::pair<Nodes, bool>, std::uint16_t> states;
    std::vector<Nodes> waiting(1);  // by state
    ends.push_back(true);
    next.assign(kind_count, matched);
    const auto state_of = [&](const Nodes& from, bool at_begin) {
      Reached reached = reacher.from(from, at_begin);
      if (reached.matched) return matched;
      const auto [found, fresh] = states.try_emplace({reached.nodes, reached.matched_at_end},
                                                     static_cast<std::uint16_t>(waiting.size()));
      if (fresh) {
        waiting.push_back(std::move(reached.nodes));
        ends.push_back(reached.matched_at_end);
      }
      return found->second;
    };
    first = state_of({begin}, true);
    for (std::size_t state = 1; state < waiting.size(); ++state) {
      if (reacher.visits() > most || waiting.size() > max_states) return broken_model("is too large");
      for (std::size_t kind = 0; kind < kind_count; ++kind) {
        Nodes after;
        for (const int index : waiting[state]) {
          const Node& node = nodes[static_cast<std::size_t>(index)];
          if (node.bytes[byte_of[kind]]) after.push_back(node.next);
        }
        next.push_back(state_of(after, false));
      }
    }
    return {};
  }
};

Result<NameExpression> NameExpression::compile(std::string_view text) {
  if (text.size() > max_length)
    return broken_model("is longer than " + std::to_string(max_length) + " bytes");
  NameExpression made;
  made.text_ = text;
  Parser parser(text);
  const auto add = [&](const Term& term, bool wanted) -> Status {
    if (!parser.problem().empty()) return broken_model(parser.problem());
    NIBBLE_ASSIGN(std::shared_ptr<const Automaton> automaton, Automaton::of(term, most_visits(text)));
    made.parts_.push_back({std::move(automaton), wanted});
    return {};
  };
  parser.takes("^");
  while (true) {
    const bool wanted = parser.takes("(?=");
    if (!wanted && !parser.takes("(?!")) break;
    const Term ahead = parser.choice(1);
    if (!parser.takes(")")) parser.fail("has a ( without a )");
    NIBBLE_RETURN_IF_ERROR(add(ahead, wanted));
  }
  const Term term = parser.choice(0);
  if (!parser.at_end()) parser.fail("has a ) without a (");
  // There the condition is the first choice's alone.
  if (term.kind == Term::Kind::choice && !made.parts_.empty())
    parser.fail("has (?=..) or (?!..) before a choice without parentheses");
  NIBBLE_RETURN_IF_ERROR(add(term, true));
  return made;
}

bool NameExpression::matches(std::string_view name) const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [&](const Part& part) { return part.automaton->matches(name) == part.wanted; });
}

}  // namespace nibble
