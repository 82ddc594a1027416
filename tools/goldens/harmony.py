#!/usr/bin/env python3
"""Writes tests/data/harmony.jsonl: conversations, tools and streams with what openai-harmony makes of them.
Needs openai-harmony and o200k_base.tiktoken, both in build/venv (tools/setup.sh --python)."""
import json
import os
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(ROOT / "build/venv/vocabularies")
import openai_harmony as harmony  # noqa: E402

import chat_template_reference as reference  # noqa: E402
import harmony_test as cases  # noqa: E402

encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
lines = []
for seed in range(40):
    rng = random.Random(seed)
    messages = cases.random_messages(rng)
    drop, prompt = rng.random() < 0.7, rng.random() < 0.8
    conversation = harmony.Conversation.from_messages([cases.harmony_message(message) for message in messages])
    config = harmony.RenderConversationConfig(auto_drop_analysis=drop)
    ids = (encoding.render_conversation_for_completion(conversation, harmony.Role.ASSISTANT, config) if prompt
           else encoding.render_conversation(conversation, config))
    lines.append({"render": messages, "drop_analysis": drop, "add_generation_prompt": prompt, "text": encoding.decode(ids)})
for seed in range(60):
    rng = random.Random(seed)
    tools = reference.TOOL_SETS[3] if seed == 0 else cases.random_tools(rng)
    content = cases.developer_content("Be kind.", tools)
    text = encoding.decode(encoding.render(harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, content)))
    lines.append({"instructions": "Be kind.", "tools": tools,
                  "text": text.removeprefix("<|start|>developer<|message|>").removesuffix("<|end|>")})
for seed in range(200):
    rng = random.Random(seed)
    ids = cases.stream(rng, encoding)
    if seed % 3:
        ids = cases.damage(ids, rng, encoding)
    want, text = cases.expected_messages(encoding, ids, "assistant"), encoding.decode(ids)
    if want is not None and "\ufffd" not in text:
        lines.append({"stream": text, "messages": want})
with open(ROOT / "tests/data/harmony.jsonl", "w") as file:
    file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
