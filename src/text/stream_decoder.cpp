#include "text/stream_decoder.h"

#include "base/utf8.h"

namespace nibble {

std::string StreamDecoder::push(TokenId token) {
  if (hidden_ == HiddenTokens::left_out && tokenizer_.is_hidden(token)) return {};
  waiting_.append(tokenizer_.bytes(token));
  std::string_view left = waiting_;
  std::string text;
  while (!left.empty()) {
    const Utf8Sequence sequence = read_utf8(left);
    if (sequence.kind == Utf8Sequence::Kind::cut_off) break;
    const bool complete = sequence.kind == Utf8Sequence::Kind::complete;
    text.append(complete ? left.substr(0, sequence.length) : kReplacementCharacter);
    left.remove_prefix(sequence.length);
  }
  waiting_.erase(0, waiting_.size() - left.size());
  return text;
}

std::string StreamDecoder::flush() {
  std::string text = to_valid_utf8(waiting_);
  waiting_.clear();
  return text;
}

}  // namespace nibble
