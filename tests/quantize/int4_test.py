"""Experts in compressed-tensors' pack-quantized int4, as Kimi-K2-Thinking has them: packed here by numpy as its format says, run
beside the same weights in bf16; what contradicts it is refused before anything runs."""
import json
import shutil

import ml_dtypes
import numpy as np
import pytest

from checkpoints import config_of, read_tensors, write_tensors
from nibble_program import PARITY, generate, run

SOURCE = PARITY / "deepseek_v3_bf16"
GROUP = 32
SCHEME = {"config_groups": {"group_0": {"input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": {
    "actorder": None, "block_structure": None, "dynamic": False, "group_size": GROUP, "num_bits": 4, "observer": "minmax",
    "observer_kwargs": {}, "strategy": "group", "symmetric": True, "type": "int"}}},
    "format": "pack-quantized", "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]}


def packed(weight):
    """(tensors behind a module's name, the weights they stand for)"""
    rows, cols = weight.shape
    groups = weight.astype(np.float32).reshape(rows, cols // GROUP, GROUP)
    scales = (np.abs(groups).max(axis=-1) / 7.5).astype(ml_dtypes.bfloat16)
    whole = np.clip(np.rint(groups / scales.astype(np.float32)[..., None]), -8, 7)
    values = (whole * scales.astype(np.float32)[..., None]).astype(ml_dtypes.bfloat16).reshape(rows, cols)
    codes = (whole.astype(np.int64) + 8).reshape(rows, cols // 8, 8)
    words = (codes << (4 * np.arange(8))).sum(axis=-1).astype(np.uint32).view(np.int32)
    return {".weight_packed": words, ".weight_scale": scales, ".weight_shape": np.array([rows, cols], np.int64)}, values


def write(folder, tensors, config):
    folder.mkdir(parents=True)
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(SOURCE / name, folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(int4, its twin in bf16, int4 with the text's config nested and prefixed as Kimi-K2.5 has it)"""
    root = tmp_path_factory.mktemp("int4")
    wide, config = read_tensors(SOURCE), config_of(SOURCE)
    small, twin = {}, {}
    for name, array in wide.items():
        if ".mlp.experts." not in name:
            small[name] = twin[name] = array
            continue
        parts, twin[name] = packed(array)
        small |= {name.removesuffix(".weight") + suffix: part for suffix, part in parts.items()}
    nested = {("language_model." + name): array for name, array in small.items()}
    nested["vision_tower.patch_embed.proj.weight"] = np.ones((4, 4), ml_dtypes.bfloat16)
    nested["mm_projector.linear_1.weight"] = np.ones((4, 4), ml_dtypes.bfloat16)
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "eos_token_id": config["eos_token_id"],
             "text_config": config | {"quantization_config": SCHEME}, "vision_config": {}}
    return (write(root / "small", small, config | {"quantization_config": SCHEME}), write(root / "twin", twin, config),
            write(root / "nested", nested, outer))


def prompt_logprobs(model, *options):
    lines = generate(model, "--prompts", SOURCE / "prompts_ids.jsonl", "--max-tokens", 8, "--temperature", 0, "--ignore-eos", "--logprobs", 5,
                     "--prompt-logprobs", *options)
    return np.concatenate([np.array(line["prompt_logprobs"][1:], np.float64).ravel() for line in lines]), [line["token_ids"] for line in lines]


def test_packed_experts_give_what_their_values_in_bf16_give(models):
    small, twin, _ = models
    values, ids = prompt_logprobs(small, "--dtype", "float32")
    expected, expected_ids = prompt_logprobs(twin, "--dtype", "float32")
    assert len(values) > 300
    assert np.abs(values - expected).max() < 2e-4
    assert ids == expected_ids


def test_a_nested_config_names_the_same_model(models):
    small, _, nested = models
    (flat, flat_ids), (deep, deep_ids) = prompt_logprobs(small), prompt_logprobs(nested)
    assert (flat == deep).all() and flat_ids == deep_ids
    code, out, err = run("inspect", nested)
    assert code == 0 and "vision" in out, out + err


def test_a_gpu_has_kernels_for_it(models):
    code, out, err = run("plan", models[0], "--as", "h200x1", "--json")
    assert code == 0, err
    chosen = {choice["field"]: choice["value"] for choice in json.loads(out)["choices"]}
    assert chosen["moe_runner"] == "sm90_int4"


@pytest.mark.parametrize("change, words", [
    ({"num_bits": 8}, "int of 8 bits in groups of 32; symmetric int of 4 bits in groups of 32 is read"),
    ({"group_size": 128}, "int of 4 bits in groups of 128; symmetric int of 4 bits in groups of 32 is read"),
    ({"symmetric": False}, "with zero points; symmetric int of 4 bits in groups of 32 is read"),
    ({"actorder": "weight"}, "in an order of its own; symmetric int of 4 bits in groups of 32 is read"),
    ({"type": "float"}, "float of 4 bits in groups of 32"),
])
def test_other_integers_are_refused(models, tmp_path, change, words):
    scheme = json.loads(json.dumps(SCHEME))
    scheme["config_groups"]["group_0"]["weights"] |= change
    assert words in refusal(models, tmp_path, {}, scheme)


def refusal(models, tmp_path, changes, scheme=SCHEME):
    folder = write(tmp_path / "changed", read_tensors(models[0]) | changes, config_of(SOURCE) | {"quantization_config": scheme})
    code, _, err = run("generate", folder, "--prompt", "a", "--max-tokens", 1)
    assert code == 3, err
    assert len(err.splitlines()) == 1
    return err


def test_tensors_that_contradict_the_format_are_refused(models, tmp_path):
    module = "model.layers.1.mlp.experts.2.up_proj"
    scales = read_tensors(models[0])[module + ".weight_scale"].copy()
    assert "weight_scale" in refusal(models, tmp_path / "a", {module + ".weight_scale": scales[:, :1].repeat(3, axis=1)})
    scales[3, 1] = np.inf
    assert f'"{module}.weight_scale" of model.safetensors holds 1 scales that are NaN or infinite, the first at [3, 1]' in refusal(
        models, tmp_path / "b", {module + ".weight_scale": scales})
    other = {"targets": ["Linear"], "format": "nvfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    two = SCHEME | {"config_groups": SCHEME["config_groups"] | {"group_1": other}}
    assert 'the target "Linear" in two groups of different formats' in refusal(models, tmp_path / "c", {}, two)
    mixed = SCHEME | {"ignore": SCHEME["ignore"] + [module]}
    assert "the experts of a layer must have one format" in refusal(models, tmp_path / "d", {}, mixed)
