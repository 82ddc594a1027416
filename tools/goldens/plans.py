#!/usr/bin/env python3
"""Writes tests/data/plans anew from the built program: tools/goldens/plans.py, then read the difference."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from nibble_program import run  # noqa: E402
from plan_cases import CASES, PLANS, text_of  # noqa: E402

PLANS.mkdir(parents=True, exist_ok=True)
for name, arguments in CASES.items():
    (PLANS / f"{name}.txt").write_text(text_of(run, arguments))
for stale in set(PLANS.glob("*.txt")) - {PLANS / f"{name}.txt" for name in CASES}:
    stale.unlink()
print(f"{len(CASES)} plans in {PLANS}")
