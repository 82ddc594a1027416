// Every pair of (expert compute, token exchange), of our names and of those that users bring along, judged
// for one model on one machine.
#pragma once

#include <string>
#include <vector>

#include "plan/rules.h"

namespace nibble {

enum class Verdict : std::uint8_t {
  here,       // would run with these options on this machine
  elsewhere,  // a pair of ours that this model, machine or number of ranks does not allow
  not_built,  // allowed here, but the kernel is only declared
  refused,    // never
};
std::string_view verdict_name(Verdict verdict);

struct MatrixCell {
  std::string exchange;
  Verdict verdict = Verdict::refused;
  std::string why;
};
struct MatrixRow {
  std::string runner;
  std::string from;     // whose name it is; empty: ours
  std::string meaning;  // what it is here
  std::vector<MatrixCell> cells;
};
struct Matrix {
  std::string model;
  std::string machine;
  std::vector<MatrixRow> rows;
};

// Refused where a choice before the pair is (a device that is not there).
Result<Matrix> judge_matrix(const EngineOptions& options, const Machine& machine, const ModelTraits& model);
std::string matrix_text(const Matrix& matrix, int columns);
std::string matrix_json(const Matrix& matrix);

}  // namespace nibble
