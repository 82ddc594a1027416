#!/usr/bin/env python3
"""Writes tests/data/chat_templates/snippets.jsonl: what jinja2 makes of each snippet (null: it fails).
Needs jinja2 (tools/requirements.txt)."""
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import chat_template_reference as reference  # noqa: E402
import chat_template_snippets as snippets  # noqa: E402

out = ROOT / "tests/data/chat_templates"
out.mkdir(parents=True, exist_ok=True)
with open(out / "snippets.jsonl", "w") as file:
    file.write(json.dumps({"variables": snippets.DATA}, ensure_ascii=False) + "\n")
    for template, variables in snippets.SNIPPETS:
        text, _ = reference.render(template, variables)
        file.write(json.dumps({"template": template, "text": text}, ensure_ascii=False) + "\n")
