// Finds calls that are the whole answer, as Llama's templates have them: {"name": N, "parameters": {...}},
// perhaps behind <|python_tag|>, several parted by semicolons. They stand at the answer's beginning or behind
// that mark. What only looks like one is text as it stood.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_piece.h"
#include "text/call_form.h"

namespace nibble {

class BareCalls {
 public:
  BareCalls(std::shared_ptr<const OfferedTools> tools, CallBinding binding)
      : binding_(binding), tools_(std::move(tools)) {}

  // Appends answer, call and arguments.
  void push(std::string_view text, std::vector<AnswerPiece>& pieces);
  void finish(std::vector<AnswerPiece>& pieces);

 private:
  // before: a call may begin here. object: inside what may be one. text: no call begins but behind a mark.
  enum class Place { before, object, text };

  bool step(std::vector<AnswerPiece>& pieces);
  bool find_object(std::vector<AnswerPiece>& pieces);
  bool read_object(std::vector<AnswerPiece>& pieces);
  void take_call(ReadCall call, std::size_t end, std::vector<AnswerPiece>& pieces);
  void show(std::size_t end, std::vector<AnswerPiece>& pieces);

  CallBinding binding_;
  std::shared_ptr<const OfferedTools> tools_;
  Place place_ = Place::before;
  std::string text_;         // not told yet
  std::size_t object_ = 0;   // of text_: where the object begins
  std::size_t scanned_ = 0;  // of text_: in an object
  int depth_ = 0;            // of brackets there
  bool in_string_ = false, escaped_ = false;
  bool called_ = false;  // some call came
};

}  // namespace nibble
