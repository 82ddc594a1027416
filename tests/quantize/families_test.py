"""`nibble quantize` of Qwen3-Next, Qwen3.5 and DeepSeek-V3: what it writes runs, and gives what the weights that numpy decodes
from it give in bf16."""
import json
import shutil

import ml_dtypes
import numpy as np
import pytest

from checkpoints import config_of, decoded, read_tensors, write_tensors
from nibble_program import PARITY, generate, run

CASES = [("deepseek_v3_bf16", "mxfp4", []), ("deepseek_v3_bf16", "nvfp4", ["--modules", "linear"]),
         ("deepseek_v3_bf16", "fp8_block", ["--modules", "linear"]), ("qwen3_next_bf16", "nvfp4", []),
         ("qwen3_next_bf16", "fp8_block", ["--modules", "linear"]), ("qwen3_5_moe_stacked", "mxfp4", []),
         ("qwen3_5_moe_stacked", "nvfp4", []), ("qwen3_5_moe_stacked", "fp8_block", ["--modules", "linear"])]


def write_twin(folder, quantized, config):
    """The same model with every quantized module decoded to bf16."""
    folder.mkdir()
    found, scheme = read_tensors(quantized), config_of(quantized)["quantization_config"]
    tensors, changed = {}, 0
    for name, array in found.items():
        module, _, last = name.rpartition(".")
        if last in ("weight_scale", "weight_scale_inv", "weight_global_scale"):
            continue
        if last == "weight_packed" or module + ".weight_scale_inv" in found:
            tensors[module + ".weight"] = decoded(found, module, scheme).astype(ml_dtypes.bfloat16)
            changed += 1
        else:
            tensors[name] = array
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(quantized / name, folder)
    return changed


def logprobs(model, case):
    lines = generate(model, "--prompts", PARITY / case / "prompts_ids.jsonl", "--max-tokens", 1, "--temperature", 0, "--ignore-eos",
                     "--logprobs", 5, "--prompt-logprobs", "--dtype", "float32")
    return np.concatenate([np.array(line["prompt_logprobs"][1:], np.float64).ravel() for line in lines])


@pytest.mark.parametrize("case, format, options", CASES, ids=lambda value: value if isinstance(value, str) else "linear" if value else "")
def test_what_is_written_runs_with_the_values_that_it_decodes_to(case, format, options, tmp_path):
    out, twin = tmp_path / "out", tmp_path / "twin"
    code, _, err = run("quantize", PARITY / case, out, "--format", format, *options,
                       *(["--exclude", "*.shared_expert.down_proj"] if case == "qwen3_next_bf16" else []))
    assert code == 0, err
    code, found, err = run("inspect", out)
    assert code == 0 and found.splitlines()[-1].split() == ["problems", "none"], found + err
    assert write_twin(twin, out, config_of(PARITY / case)) > 10
    found, decoded_first, wide = (logprobs(model, case) for model in (out, twin, PARITY / case))
    if format == "mxfp4":  # whose values bf16 holds; others are rounded in the twin alone
        assert (found == decoded_first).all()
    distance = lambda other: np.sqrt(((found - other) ** 2).mean())
    assert distance(decoded_first) < 0.3 * distance(wide)


def test_stacked_experts_come_out_one_by_one_with_gates_before_ups(tmp_path):
    case = "qwen3_5_moe_stacked"
    code, _, err = run("quantize", PARITY / case, tmp_path / "out", "--format", "fp8_block")
    assert code == 0, err
    source, found = read_tensors(PARITY / case), read_tensors(tmp_path / "out")
    config = config_of(tmp_path / "out")["quantization_config"]
    prefix = next(name for name in source if name.endswith("mlp.experts.gate_up_proj")).removesuffix("gate_up_proj")
    both, down = source[prefix + "gate_up_proj"].astype(np.float32), source[prefix + "down_proj"].astype(np.float32)
    half = both.shape[1] // 2
    for expert in range(both.shape[0]):
        for name, rows in (("gate_proj", both[expert, :half]), ("up_proj", both[expert, half:]), ("down_proj", down[expert])):
            values = decoded(found, f"{prefix}{expert}.{name}", config)
            assert np.sqrt(((rows - values) ** 2).mean() / (rows ** 2).mean()) < 0.04
    assert not any(name.endswith(("gate_up_proj", "experts.down_proj")) for name in found)


def test_what_few_rows_decide_stays_as_it_is(tmp_path):
    code, _, err = run("quantize", PARITY / "qwen3_next_bf16", tmp_path / "out", "--format", "fp8_block", "--modules", "linear")
    assert code == 0, err
    found = read_tensors(tmp_path / "out")
    kept = [name for name in found if name.endswith(("in_proj_ba.weight", "mlp.gate.weight", "shared_expert_gate.weight"))]
    assert len(kept) >= 9 and all(found[name].dtype == ml_dtypes.bfloat16 for name in kept)


def test_a_dense_model_runs_and_any_cut_of_a_prompt_gives_the_same_bits(tmp_path):
    """The mixture of the parity case with its shared expert as the one feed-forward of each layer."""
    source, config = PARITY / "qwen3_5_moe_stacked", config_of(PARITY / "qwen3_5_moe_stacked")
    tensors = {}
    for name, array in read_tensors(source).items():
        if ".mlp.shared_expert." in name:
            tensors[name.replace("shared_expert.", "")] = array
        elif ".mlp." not in name:
            tensors[name] = array
    text = config["text_config"]
    text["intermediate_size"] = text["shared_expert_intermediate_size"]
    for field in ("moe_intermediate_size", "num_experts", "num_experts_per_tok", "shared_expert_intermediate_size"):
        del text[field]
    config["architectures"] = ["Qwen3_5ForConditionalGeneration"]
    out = tmp_path / "dense"
    out.mkdir()
    write_tensors(out / "model.safetensors", tensors)
    (out / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(source / name, out)
    asked = ["--prompts", source / "prompts_ids.jsonl", "--max-tokens", 4, "--temperature", 0, "--ignore-eos", "--prompt-logprobs"]
    whole, cut = generate(out, *asked), generate(out, *asked, "--max-num-batched-tokens", 17)
    for line, other in zip(whole, cut, strict=True):
        assert all(np.isfinite(value) for value in np.array(line["prompt_logprobs"][1:], np.float64).ravel())
        assert (line["token_ids"], line["prompt_logprobs"]) == (other["token_ids"], other["prompt_logprobs"])
