"""The pages of docs/api hold an example each that works as it stands."""
import json
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "api").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_pages_example_is_answered(server, page):
    path, body = re.search(r"curl http://127.0.0.1:8000(\S+) .*?-d '(.*?)'", page.read_text(), re.S).groups()
    status, answer, _ = server.ask(path, json.loads(body))
    assert status == 200 and answer["model"] == "demo", answer
