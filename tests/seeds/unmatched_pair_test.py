"""A kernel and a token exchange that do not fit together failed after the weights were loaded, without a word of what would."""
import json

from nibble_program import PARITY, ROOT, run

CONFIG_ALONE = ROOT / "tests/data/models/gpt-oss-20b"  # no weights: what is refused, is refused before they are looked for
EXCHANGES = ("none", "normal", "low_latency", "deepep", "flashinfer", "mooncake")


def pairs_of(model):
    code, out, err = run("plan", model, "--matrix", "--json")
    assert code == 0, err
    return {(pair["moe_runner"], pair["token_exchange"]): pair for pair in json.loads(out)["pairs"]}


def test_every_pair_runs_or_is_refused_before_weights_are_looked_for():
    for (runner, exchange), pair in pairs_of(CONFIG_ALONE).items():
        if exchange not in EXCHANGES:
            continue
        code, out, err = run("generate", CONFIG_ALONE, "--prompt-ids", "1", "--max-tokens", 1, "--moe-runner-backend", runner,
                             "--moe-a2a-backend", exchange)
        assert out == ""
        if pair["verdict"] == "runs here":
            assert code == 3 and "safetensors" in err, (runner, exchange, err)
        else:
            assert code == 2, (runner, exchange, err)
            assert "give" in err and ("cpu_scalar" in err or "none" in err), "what would work"


def test_every_pair_that_runs_here_runs():
    example = PARITY / "example"
    texts = set()
    for (runner, exchange), pair in pairs_of(example).items():
        if pair["verdict"] != "runs here":
            continue
        code, out, err = run("generate", example, "--prompt-ids", "1,2,3", "--max-tokens", 4, "--temperature", 0, "--json", "--moe-runner-backend",
                             runner, "--moe-a2a-backend", exchange)
        assert code == 0, (runner, exchange, err)
        texts.add(tuple(json.loads(out)["token_ids"]))
    assert len(texts) == 1, "all give the same tokens"
