#include "plan/matrix.h"

#include <algorithm>

#include "plan/text_layout.h"

namespace nibble {
namespace {

MatrixCell cell_of(const JudgedPair& pair, std::string_view exchange) {
  const auto removed_by = [&](std::string_view rule) {
    return std::find(pair.rules.begin(), pair.rules.end(), rule) != pair.rules.end();
  };
  MatrixCell cell{.exchange = std::string(exchange), .verdict = Verdict::elsewhere, .why = pair.why};
  if (removed_by("runner-takes-dispatch")) {
    cell.verdict = Verdict::refused;
    cell.why =
        "it takes tokens in place, not " + std::string(dispatch_format_name(pair.path.dispatch)) + " ones";
  } else if (pair.rules.empty() || pair.rules == std::vector<std::string>{"runner-not-built"}) {
    cell.verdict = pair.built ? Verdict::here : Verdict::not_built;
    cell.why = "tokens " + std::string(dispatch_format_name(pair.path.dispatch)) + ", weights in layout " +
               std::string(weight_layout_name(pair.path.layout)) + ", results " +
               std::string(combine_format_name(pair.path.combine));
  }
  return cell;
}

std::string refusal_of(const ForeignName& name) {
  return std::string(name.because) + "; give " + std::string(name.instead);
}

// Refused with every runner, so said once.
bool never_taken(std::string_view exchange) {
  const ForeignName* name = find_foreign(foreign_exchanges(), exchange);
  return name != nullptr && name->ours.empty();
}

const JudgedPair& pair_of(const std::vector<JudgedPair>& pairs, std::string_view kernel,
                          std::string_view exchange) {
  const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const JudgedPair& pair) {
    return pair.path.kernel == kernel && pair.path.exchange == exchange;
  });
  NIBBLE_CHECK(found != pairs.end());
  return *found;
}

// A runner of ours under every name of an exchange that means one of ours.
std::vector<MatrixCell> cells_of(const std::vector<JudgedPair>& pairs, std::string_view kernel) {
  std::vector<MatrixCell> cells;
  for (const Exchange& exchange : exchanges())
    cells.push_back(cell_of(pair_of(pairs, kernel, exchange.name), exchange.name));
  for (const ForeignName& name : foreign_exchanges()) {
    if (!name.ours.empty()) {
      cells.push_back(cell_of(pair_of(pairs, kernel, name.ours), name.name));
    } else {
      cells.push_back({std::string(name.name), Verdict::refused, refusal_of(name)});
    }
  }
  return cells;
}

std::vector<MatrixCell> refused_cells(const ForeignName& runner) {
  std::vector<MatrixCell> cells;
  for (const Exchange& exchange : exchanges())
    cells.push_back({std::string(exchange.name), Verdict::refused, refusal_of(runner)});
  for (const ForeignName& name : foreign_exchanges())
    cells.push_back(
        {std::string(name.name), Verdict::refused, refusal_of(name.ours.empty() ? name : runner)});
  return cells;
}

// What `auto` comes to with each exchange: the first kernel that may run, or else the first there is.
MatrixRow auto_row(const std::vector<JudgedPair>& pairs, const std::vector<MatrixRow>& ours) {
  MatrixRow row{.runner = "auto", .from = {}, .meaning = "the first of ours that runs", .cells = {}};
  for (std::size_t i = 0; i < ours[0].cells.size(); ++i) {
    const MatrixCell* best = &ours[0].cells[i];
    for (const JudgedPair& pair : pairs) {
      const auto of_kernel = std::find_if(
          ours.begin(), ours.end(), [&](const MatrixRow& each) { return each.runner == pair.path.kernel; });
      const MatrixCell& cell = of_kernel->cells[i];
      const auto rank = [](Verdict verdict) { return static_cast<int>(verdict); };
      if (rank(cell.verdict) != rank(best->verdict) && cell.verdict != Verdict::elsewhere &&
          (cell.verdict == Verdict::here ||
           (cell.verdict == Verdict::not_built && best->verdict != Verdict::here)))
        best = &cell;
    }
    row.cells.push_back(*best);
  }
  return row;
}

// Exchanges with one verdict for one reason share a line.
std::string row_text(const MatrixRow& row, int columns) {
  constexpr int indent = 15;
  std::vector<std::pair<const MatrixCell*, std::string>> groups;
  for (const MatrixCell& cell : row.cells) {
    if (never_taken(cell.exchange)) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group.first->verdict == cell.verdict && group.first->why == cell.why;
    });
    if (same == groups.end()) {
      groups.emplace_back(&cell, cell.exchange);
    } else {
      same->second += ", " + cell.exchange;
    }
  }
  std::string name = row.runner;
  if (!row.from.empty()) name += " (" + row.from + ")";
  std::string text = wrapped(name + (row.meaning.empty() ? "" : ": "), row.meaning, 4, columns);
  for (const auto& [cell, names] : groups) {
    const bool all = groups.size() == 1;
    text += wrapped("  " + padded(std::string(verdict_name(cell->verdict)), indent - 3) + " ",
                    (all ? "with every exchange" : names) + ": " + cell->why, indent, columns);
  }
  return text;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  constexpr std::string_view names[] = {"runs here", "elsewhere", "not built", "refused"};
  return names[static_cast<std::size_t>(verdict)];
}

Result<Matrix> judge_matrix(const EngineOptions& options, const Machine& machine, const ModelTraits& model) {
  NIBBLE_ASSIGN(const std::vector<JudgedPair> pairs, judge_pairs(options, machine, model));
  Matrix matrix{.model = model.name, .machine = machine.name, .rows = {}};
  for (const ExpertKernel& kernel : expert_kernels()) {
    const std::string format(stored_format_name(kernel.format));
    matrix.rows.push_back({.runner = std::string(kernel.facts.name),
                           .from = {},
                           .meaning = "experts in " + format +
                                      (kernel.facts.device == DeviceKind::cpu ? ", on a CPU" : ", on a GPU"),
                           .cells = cells_of(pairs, kernel.facts.name)});
  }
  matrix.rows.insert(matrix.rows.begin(), auto_row(pairs, matrix.rows));
  for (const ForeignName& name : foreign_runners()) {
    MatrixRow row{
        .runner = std::string(name.name), .from = std::string(name.from), .meaning = {}, .cells = {}};
    if (name.ours.empty()) {
      row.cells = refused_cells(name);
    } else {
      row.meaning = "taken as " + std::string(name.ours) + ", " + std::string(name.because);
      row.cells = cells_of(pairs, name.ours);
    }
    matrix.rows.push_back(std::move(row));
  }
  return matrix;
}

std::string matrix_text(const Matrix& matrix, int columns) {
  std::string text =
      wrapped("",
              "Pairs of expert compute (--moe-runner-backend) and token exchange (--moe-a2a-backend) for " +
                  matrix.model + " on " + (matrix.machine == "this" ? "this machine" : matrix.machine) + ".",
              0, columns);
  for (const MatrixRow& row : matrix.rows) text += "\n" + row_text(row, columns);
  text += "\nRefused with every runner, as --moe-a2a-backend:\n";
  for (const ForeignName& name : foreign_exchanges()) {
    if (!name.ours.empty()) continue;
    text += wrapped("  " + std::string(name.name) + " (" + std::string(name.from) + "): ", refusal_of(name),
                    4, columns);
  }
  return text;
}

std::string matrix_json(const Matrix& matrix) {
  std::string text;
  JsonWriter json(text);
  json.begin_object()
      .member("model", matrix.model)
      .member("machine", matrix.machine)
      .key("pairs")
      .begin_array();
  for (const MatrixRow& row : matrix.rows) {
    for (const MatrixCell& cell : row.cells) {
      json.begin_object()
          .member("moe_runner", row.runner)
          .member("token_exchange", cell.exchange)
          .member("verdict", verdict_name(cell.verdict))
          .member("why", cell.why)
          .end_object();
    }
  }
  json.end_array().end_object();
  return text;
}

}  // namespace nibble
