"""llm: the command line as its user types it, with a model that its configuration names."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import STORY, run_checks, url

HOME = tempfile.TemporaryDirectory()
Path(HOME.name, "extra-openai-models.yaml").write_text("".join(
    f"- model_id: {name}\n  model_name: demo\n  api_base: {url()}/v1\n  supports_schema: true\n  supports_tools: true\n{more}"
    for name, more in (("chat", ""), ("answers", "  responses: true\n"))))


def llm(*arguments):
    done = subprocess.run([sys.executable, "-m", "llm", *arguments], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"LLM_USER_PATH": HOME.name})
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_texts_whole_and_streamed():
    for model in ("chat", "answers"):
        whole = llm("-m", model, "--no-stream", "-o", "max_tokens", "16", "-o", "temperature", "0", STORY)
        assert whole.strip() and llm("-m", model, "-o", "max_tokens", "16", "-o", "temperature", "0", STORY) == whole


def check_a_schema():
    for model in ("chat", "answers"):
        schema = {"type": "object", "properties": {"kind": {"enum": ["frog", "bear"]}}, "required": ["kind"], "additionalProperties": False}
        assert json.loads(llm("-m", model, "--no-stream", "-o", "max_tokens", "1200", "--schema", json.dumps(schema), STORY))["kind"] in ("frog", "bear")


def check_tools_are_offered():
    function = "def look(closely: bool) -> str:\n    'Looks.'\n    return 'green'\n"
    assert llm("-m", "chat", "--no-stream", "-o", "max_tokens", "16", "--functions", function, STORY).strip()


def check_a_conversation_goes_on():
    llm("-m", "chat", "--no-stream", "-o", "max_tokens", "8", STORY)
    assert llm("-c", "--no-stream", "-o", "max_tokens", "8", "And a bear?").strip()


if __name__ == "__main__":
    run_checks(globals())
