"""The examples of docs/api.md and docs/api work as they stand, and every endpoint has one."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "api.md", *sorted((DOCS / "api").glob("*.md"))]
EXAMPLES = [(page.stem, number, code) for page in PAGES
            for number, code in enumerate(re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S)) if "curl" in code]


@pytest.mark.parametrize("page, number, code", EXAMPLES, ids=[f"{page}-{number}" for page, number, _ in EXAMPLES])
def test_an_example_is_answered(server, page, number, code):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    code = re.sub(r"(http://)?(127\.0\.0\.1|localhost):8000", server.url, code)
    failing = 'curl() { command curl --silent --show-error --fail-with-body "$@" || { echo; exit 22; }; echo; }\n'
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", failing + code], capture_output=True, text=True, timeout=60)
    if "writes calls in no form" in done.stdout:
        pytest.skip("the demo's template writes no calls")
    assert done.returncode == 0 and done.stdout.strip(), (done.stdout, done.stderr)
    for line in filter(lambda line: line.startswith("{"), done.stdout.splitlines()):
        assert "error" not in json.loads(line) or json.loads(line)["error"] is None, line


def test_every_endpoint_has_an_example(server):
    shown = "\n".join(code for _, _, code in EXAMPLES).replace("$ID", "ID")
    for path in json.loads(server.get("/openapi.json")[1])["paths"]:
        pattern = re.sub(r"\\{\w+\\}", r"[^/\\s\"]+", re.escape(path))
        in_loop = re.search(rf"for path in [^;]*\b{re.escape(path[1:].replace('{model}', 'demo'))}\b", shown)
        assert in_loop or re.search(rf"127\.0\.0\.1:8000{pattern}[\s\"?]", shown), f"{path} has no example in docs/api"
