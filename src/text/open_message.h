// A conversation whose last message the model goes on writing: its prompt ends with that message's text.
#pragma once

#include "base/status.h"
#include "text/conversation.h"

namespace nibble {

// Cuts the prompt behind the text of the conversation's last message. A template may have left out white
// space around that text, and nothing that came with the request may stand behind it.
Status leave_open(const Message& last, RenderedPrompt& prompt);

}  // namespace nibble
