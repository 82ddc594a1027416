"""The long run of what src/server/api/generation_test.cpp samples: a million answers of a model gone wrong."""
import os
import subprocess
from pathlib import Path

import pytest

from nibble_program import ROOT, environment

PROGRAM = Path(os.environ.get("NIBBLE_BUILD", ROOT / "build/release")) / "src/server/server_test"


@pytest.mark.extended
def test_a_million_answers_of_markers_and_halves_of_characters_are_answers():
    done = subprocess.run([PROGRAM, "--gtest_filter=Generation.Whatever*"], env=environment(NIBBLE_RANDOM_ANSWERS="1000000"),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3600)
    assert done.returncode == 0 and b"[  PASSED  ] 1 test." in done.stdout, done.stdout[-2000:]
