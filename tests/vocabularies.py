"""Published vocabularies, which tools/fetch_vocabularies.py brings."""
import pytest

from nibble_program import ROOT

FOLDER = ROOT / "build/venv/vocabularies"
O200K = FOLDER / "o200k_base.tiktoken"
DEEPSEEK = FOLDER / "deepseek.json"
QWEN = FOLDER / "qwen.tiktoken"
ALL = (O200K, DEEPSEEK, QWEN)


def needs(*vocabularies):
    return pytest.mark.skipif(not all(path.exists() for path in vocabularies), reason="tools/fetch_vocabularies.py could not bring them")
