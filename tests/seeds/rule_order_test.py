"""Two rules set one choice, and the later one won. (That no order of rules changes a plan is src/plan/resolve_test.cpp's.)"""
import itertools
import json

from nibble_program import ROOT, run

OSS = ROOT / "tests/data/models/gpt-oss-120b"


def test_nothing_that_is_asked_for_switches_off_something_else_that_is():
    """Ranks gather whole sums, which fit batch invariance and graphs; another way is refused, not left off."""
    code, out, err = run("plan", OSS, "--as", "h200x4", "--tp", 4, "--all-reduce", "gather", "--json")
    assert code == 0, err
    chosen = {choice["field"]: (choice["value"], choice["from"]) for choice in json.loads(out)["choices"]}
    assert chosen["all_reduce"] == ("gather", "user")
    assert chosen["batch_invariance"][0] == "on"
    assert chosen["cuda_graphs"][0] == "on"
    code, out, err = run("plan", OSS, "--as", "h200x4", "--tp", 4, "--all-reduce", "fused")
    assert (code, out) == (2, "")
    assert "--all-reduce fused: ranks have whole sums and gather them; give gather" in err


def test_the_order_of_options_changes_nothing():
    options = [("--tp", "4"), ("--ep", "4"), ("--all-reduce", "gather"), ("--kv-cache-dtype", "fp8")]
    plans = set()
    for order in itertools.permutations(options):
        code, out, err = run("plan", OSS, "--as", "h200x4", "--json", *itertools.chain(*order))
        assert code == 0, err
        plans.add(out)
    assert len(plans) == 1


def test_two_wishes_that_exclude_each_other_are_refused_not_ranked():
    code, out, err = run("plan", OSS, "--as", "h200x1", "--tp", 1, "--all-reduce", "fused")
    assert (code, out) == (2, "") and "--all-reduce fused: there is one rank; give none" in err
