// Finds calls in the text of an answer whose template marks them in the text. A call comes out when it is
// complete: only then is it known to be one. What only looks like one is text, with its marks, as it stood.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_piece.h"
#include "text/bare_calls.h"
#include "text/call_form.h"

namespace nibble {

class CallReader {
 public:
  CallReader(CallForm form, std::shared_ptr<const OfferedTools> tools,
             CallBinding binding = CallBinding::free)
      : form_(form), binding_(binding), marks_(call_marks(form)), tools_(std::move(tools)) {
    if (form == CallForm::bare_json) bare_.emplace(tools_, binding);
  }

  // Whether a token spelled like this is to be read although it is a control token.
  bool needs(std::string_view spelling) const;
  // Appends answer, call and arguments.
  void push(std::string_view text, std::vector<AnswerPiece>& pieces);
  void finish(std::vector<AnswerPiece>& pieces);

 private:
  struct Mark {
    std::size_t at;
    std::string_view spelling;
  };
  Mark next_mark() const;
  std::size_t begun_mark() const;
  void show(std::string_view text, std::vector<AnswerPiece>& pieces);
  bool take_call(std::optional<ReadCall> call, std::size_t spelled, std::vector<AnswerPiece>& pieces);

  CallForm form_;
  CallBinding binding_;
  CallMarks marks_;
  std::shared_ptr<const OfferedTools> tools_;
  std::optional<BareCalls> bare_;  // reads all, where calls have no closing mark
  std::string text_;               // not told yet; inside a call, what stands behind its opening mark
  std::string white_;              // told before it, if text follows and no call
  std::size_t searched_ = 0;       // of text_, inside a call: the closing mark does not begin before this
  bool inside_ = false;            // a call
  bool called_ = false;            // some call came
  bool all_text_ = false;          // no call can come any more
};

}  // namespace nibble
