// Unicode normalization form C, with the code points that the normalizer of PyPI tokenizers knows: models
// were trained with it, and what it does not know it leaves alone.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

// The normalized text: `text` itself where nothing can change, else made in `storage`. `text` is valid UTF-8.
std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace nibble
