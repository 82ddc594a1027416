"""Checkpoints whose modules are in several formats, as compressed-tensors and ModelOpt write them: made here by numpy as the formats
say, run beside the same weights in bf16, which holds them exactly; what contradicts itself is refused before anything runs. Then those
that `nibble quantize --rest` writes."""
import json
import re
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest

from checkpoints import E2M1, config_of, decoded, read_tensors, write_tensors, write_wide_demo
from nibble_program import BINARY, PARITY, generate, run

EMULATED = BINARY.with_name("nibble_emulated")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
FP8_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128], "symmetric": True, "dynamic": False}
GROUPS = {
    "mxfp4": {"format": "mxfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}},
    "nvfp4": {"format": "nvfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}},
    "fp8": {"format": "float-quantized", "weights": FP8_WEIGHTS, "input_activations": {"num_bits": 8, "dynamic": True, "group_size": 128}},
    "rows": {"format": "float-quantized", "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
             "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}}}


def power_of_two(values):
    """The smallest that is not below."""
    return np.exp2(np.ceil(np.log2(np.maximum(values, 2.0 ** -60)))).astype(np.float32)


def tiles(weight):
    return [(i, j, (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)))
            for i in range(-(-weight.shape[0] // 128)) for j in range(-(-weight.shape[1] // 128))]


def fp8_blocks(weight):
    """(tensors behind a module's name, the weights they stand for)"""
    scales = np.zeros([-(-extent // 128) for extent in weight.shape], np.float32)
    codes, values = np.zeros(weight.shape, ml_dtypes.float8_e4m3fn), np.zeros(weight.shape, np.float32)
    for i, j, tile in tiles(weight):
        scales[i, j] = power_of_two(np.abs(weight[tile]).max() / 448)
        codes[tile] = (weight[tile] / scales[i, j]).astype(ml_dtypes.float8_e4m3fn)
        values[tile] = codes[tile].astype(np.float32) * scales[i, j]
    return {"weight": codes, "weight_scale": scales.astype(ml_dtypes.bfloat16)}, values


def four_bits(weight, block, scales):
    """Packed codes of blocks that are multiplied by powers of two, and the weights they stand for."""
    wide = np.repeat(scales, block, axis=1)
    codes = np.abs((weight / wide)[..., None] - E2M1).argmin(axis=-1).astype(np.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << 4, E2M1[codes] * wide


def mxfp4(weight):
    scales = power_of_two(np.abs(weight).reshape(len(weight), -1, 32).max(axis=-1) / 6)
    codes, values = four_bits(weight, 32, scales)
    return {"weight_packed": codes, "weight_scale": (np.log2(scales) + 127).astype(np.uint8)}, values


def nvfp4(weight):
    scales = power_of_two(np.abs(weight).reshape(len(weight), -1, 16).max(axis=-1) / 6)
    codes, values = four_bits(weight, 16, scales)
    whole = power_of_two(256 / scales.max())
    return {"weight_packed": codes, "weight_scale": (scales * whole).astype(ml_dtypes.float8_e4m3fn),
            "weight_global_scale": np.array([whole], np.float32)}, values


def fp8_single(weight):
    scale = power_of_two(np.abs(weight).max() / 448)
    codes = (weight / scale).astype(ml_dtypes.float8_e4m3fn)
    return {"weight": codes, "weight_scale": np.array(scale), "input_scale": np.array(scale)}, codes.astype(np.float32) * scale


def fp8_rows(weight, scales=power_of_two):
    scales = scales(np.abs(weight).max(axis=1, keepdims=True) / 448)
    codes = (weight / scales).astype(ml_dtypes.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}, codes.astype(np.float32) * scales


def fbgemm(weight):
    parts, values = fp8_rows(weight)
    return parts | {"weight_scale": parts["weight_scale"].astype(ml_dtypes.bfloat16)}, values


def modelopt_rows(weight):
    parts, values = fp8_rows(weight)
    return parts | {"weight_scale": parts["weight_scale"][:, 0]}, values


def modelopt_nvfp4(weight):
    parts, values = nvfp4(weight)
    return {"weight": parts["weight_packed"], "weight_scale": parts["weight_scale"],
            "weight_scale_2": np.array(1 / parts["weight_global_scale"][0])}, values


def modelopt_blocks(weight):
    parts, values = fp8_blocks(weight)
    return {"weight": parts["weight"], "weight_scale": parts["weight_scale"].astype(np.float32)[:, None, :, None]}, values


ENCODERS = {"mxfp4": mxfp4, "nvfp4": nvfp4, "fp8": fp8_blocks, "single": fp8_single, "modelopt_nvfp4": modelopt_nvfp4,
            "modelopt_blocks": modelopt_blocks, "rows": fp8_rows, "fbgemm": fbgemm, "modelopt_rows": modelopt_rows}


def write(folder, tensors, config, source):
    folder.mkdir(parents=True)
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER:
        shutil.copy(source / name, folder)
    return folder


def scheme_of(groups, ignore=("lm_head",), format="mixed-precision"):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed", "ignore": list(ignore),
            "config_groups": {f"group_{i}": group for i, group in enumerate(groups)}}


def write_mixed(root, case, encoder_of, scheme):
    """(a checkpoint of parity in other formats, its twin in bf16); encoder_of names a module's format, or None."""
    source = PARITY / case
    config, mixed, twin = config_of(source), {}, {}
    for name, array in read_tensors(source).items():
        module = name.removesuffix(".weight")
        encoder = encoder_of(module) if name.endswith(".weight") and array.ndim == 2 else None
        if encoder is None:
            mixed[name] = twin[name] = array
            continue
        parts, values = ENCODERS[encoder](array.astype(np.float32))
        mixed |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
        twin[name] = values.astype(ml_dtypes.bfloat16)
        assert (twin[name].astype(np.float32) == values).all()
    return (write(root / "mixed", mixed, config | {"quantization_config": scheme}, source), write(root / "twin", twin, config, source))


def logprobs(model, case, *options):
    lines = generate(model, "--prompts", PARITY / case / "prompts_ids.jsonl", "--max-tokens", 8, "--temperature", 0, "--ignore-eos",
                     "--prompt-logprobs", *options)
    return np.concatenate([np.array(line["prompt_logprobs"][1:], np.float64).ravel() for line in lines]), [line["token_ids"] for line in lines]


def same_answers(mixed, twin, case):
    values, ids = logprobs(mixed, case, "--dtype", "float32")
    expected, expected_ids = logprobs(twin, case, "--dtype", "float32")
    assert len(values) > 100
    assert np.abs(values - expected).max() < 2e-4
    assert ids == expected_ids
    code, out, err = run("inspect", mixed)
    assert code == 0 and out.splitlines()[-1].split() == ["problems", "none"], out + err
    return out


def write_modelopt(root, case, of_attention):
    """Experts in NVFP4; of_attention gives the algorithm and the encoder of another module's."""
    def encoder_of(module):
        place = format_by_place("modelopt_nvfp4")(module)
        return of_attention(module)[1] if place == "fp8" else place
    modules = {}
    for name in read_tensors(PARITY / case):
        module = name.removesuffix(".weight")
        if not name.endswith(".weight") or encoder_of(module) is None:
            continue
        if ".experts." in module:  # named by what they lie in
            modules[module.split(".experts.")[0] + ".experts"] = {"quant_algo": "NVFP4", "group_size": 16}
        else:
            modules[module] = {"quant_algo": of_attention(module)[0]}
    scheme = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": ["lm_head"], "quantized_layers": modules}
    return write_mixed(root, case, encoder_of, scheme)


def format_by_place(experts, attention="fp8"):
    def encoder_of(module):
        last = module.rpartition(".")[2]
        if ".experts." in module:
            return experts
        return attention if ".self_attn." in module and last.endswith(("_proj", "_mqa")) else None
    return encoder_of


EXPERTS, ATTENTION = r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$", r"re:.*self_attn\.[a-z_]+_proj"


@pytest.mark.parametrize("case, experts, says", [("qwen3_moe_bf16", "nvfp4", True), ("deepseek_v3_bf16", "mxfp4", False),
                                                 ("qwen3_next_bf16", "nvfp4", True)])
def test_each_group_of_modules_has_its_format(tmp_path, case, experts, says):
    groups = [GROUPS[experts] | {"targets": [EXPERTS]}, GROUPS["fp8"] | {"targets": [ATTENTION]}]
    if not says:
        groups = [{key: value for key, value in group.items() if key != "format"} for group in groups]
    mixed, twin = write_mixed(tmp_path, case, format_by_place(experts), scheme_of(groups))
    out = same_answers(mixed, twin, case)
    assert experts in out and "fp8_block" in out


def test_fp8_may_have_one_scale_a_matrix(tmp_path):
    groups = [GROUPS["mxfp4"] | {"targets": [EXPERTS]},
              GROUPS["fp8"] | {"targets": [ATTENTION], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}]
    same_answers(*write_mixed(tmp_path, "deepseek_v3_bf16", format_by_place("mxfp4", "single"), scheme_of(groups)), "deepseek_v3_bf16")


EVERYWHERE = {"float-quantized": ("rows", scheme_of([GROUPS["rows"] | {"targets": ["Linear"]}], ["lm_head", "re:.*mlp.gate$"], "float-quantized")),
              "fbgemm_fp8": ("fbgemm", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]})}


def write_everywhere(root, case, writer, without="none"):
    encoder, scheme = EVERYWHERE[writer]
    linear = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "out_proj", "in_proj_qkvz", "_a_proj", "_b_proj", "_mqa")
    return write_mixed(root, case, lambda module: encoder if module.endswith(linear) and without not in module else None,
                       scheme | {"ignore": scheme["ignore"] + [f"re:.*{re.escape(without)}.*"]} if "ignore" in scheme else scheme)


@pytest.mark.parametrize("writer", EVERYWHERE)
@pytest.mark.parametrize("case", ["qwen3_moe_bf16", "deepseek_v3_bf16", "qwen3_next_bf16"])
def test_fp8_may_have_a_scale_a_row_wherever_a_module_is(tmp_path, case, writer):
    mixed, twin = write_everywhere(tmp_path, case, writer)
    assert "fp8_row" in same_answers(mixed, twin, case)


def test_a_scale_a_row_has_the_bits_of_blocks_of_the_same_scale(tmp_path):
    """All scales of a matrix are one power of two, which moves no rounding wherever it is multiplied."""
    whole = lambda weight: np.full((len(weight), 1), power_of_two(np.abs(weight).max() / 448), np.float32)
    def rows(weight):
        return fp8_rows(weight, lambda _: whole(weight))[0]
    source, tensors = PARITY / "qwen3_moe_bf16", read_tensors(PARITY / "qwen3_moe_bf16")
    answers = []
    for group, spread in (("rows", lambda scales, shape: scales), ("fp8", lambda scales, shape: np.full(shape, scales[0], np.float32))):
        made = {}
        for name, array in tensors.items():
            module = name.removesuffix(".weight")
            if format_by_place("rows")(module) is None:
                made[name] = array
                continue
            parts = rows(array.astype(np.float32))
            made[name] = parts["weight"]
            made[name + "_scale"] = spread(parts["weight_scale"], [-(-extent // 128) for extent in array.shape])
        scheme = scheme_of([GROUPS[group] | {"targets": ["Linear"]}], ["lm_head", "re:.*mlp.gate$"], "float-quantized")
        folder = write(tmp_path / group, made, config_of(source) | {"quantization_config": scheme}, source)
        answers.append(logprobs(folder, "qwen3_moe_bf16"))
    assert (answers[0][0] == answers[1][0]).all() and answers[0][1] == answers[1][1]


@pytest.mark.parametrize("case, algorithm, attention", [("deepseek_v3_bf16", "FP8_PB_WO", "modelopt_blocks"), ("qwen3_moe_bf16", "FP8", "single"),
                                                        ("deepseek_v3_bf16", "FP8_PER_CHANNEL_PER_TOKEN", "modelopt_rows")])
def test_modelopt_mixes_nvfp4_with_fp8(tmp_path, case, algorithm, attention):
    same_answers(*write_modelopt(tmp_path, case, lambda module: (algorithm, attention)), case)


def answer_of_emulated_gpu(model):
    done = subprocess.run([EMULATED, "generate", model, "--device", "cuda", "--enforce-eager", "--prompt-ids", "3,77,120,9,45,200,12,31,7",
                           "--max-tokens", "2", "--temperature", "0", "--ignore-eos", "--prompt-logprobs", "--max-model-len", "256",
                           "--max-num-seqs", "2", "--max-num-batched-tokens", "64", "--kv-cache-tokens", "1024", "--json"],
                          capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    return line["token_ids"], line["prompt_logprobs"]


@pytest.mark.some(1)
@pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")
@pytest.mark.parametrize("others", [("FP8", "single"), ("FP8_PER_CHANNEL_PER_TOKEN", "modelopt_rows")])
def test_a_gpu_takes_what_is_mixed_and_gives_the_bits_of_the_same_weights_in_bf16(tmp_path, others):
    """Experts in NVFP4; of attention one matrix a layer in blocks, the others with one scale each or with one a row."""
    mixed, twin = write_modelopt(tmp_path, "deepseek_v3_bf16", lambda module: (
        ("FP8_PB_WO", "modelopt_blocks") if module.endswith("o_proj") else others))
    assert answer_of_emulated_gpu(mixed) == answer_of_emulated_gpu(twin)


@pytest.mark.long
@pytest.mark.skipif(not EMULATED.exists(), reason="the emulation of a GPU is not built with sanitizers")
@pytest.mark.parametrize("case", ["deepseek_v3_bf16", "qwen3_next_bf16"])
def test_a_gpu_takes_a_scale_a_row_with_the_bits_of_the_same_weights_in_bf16(tmp_path, case):
    """No matrix has more than a block of columns. Shared experts of qwen3_next are 40 wide, where the kernels take sixteens."""
    mixed, twin = write_everywhere(tmp_path, case, "float-quantized", "shared_expert.")
    assert answer_of_emulated_gpu(mixed) == answer_of_emulated_gpu(twin)


def test_blocks_of_fp8_under_compressed_tensors_names_give_the_same_bits(tmp_path):
    """qwen3_moe_fp8 as RedHatAI's FP8-BLOCK checkpoints name things."""
    source = PARITY / "qwen3_moe_fp8"
    tensors = {name.replace(".weight_scale_inv", ".weight_scale"): array for name, array in read_tensors(source).items()}
    scheme = scheme_of([GROUPS["fp8"] | {"targets": ["Linear"]}], ["lm_head", "re:.*mlp.gate$"], "float-quantized")
    renamed = write(tmp_path / "renamed", tensors, config_of(source) | {"quantization_config": scheme}, source)
    values, ids = logprobs(renamed, "qwen3_moe_fp8")
    expected, expected_ids = logprobs(source, "qwen3_moe_fp8")
    assert (values == expected).all() and ids == expected_ids


def test_a_plan_of_the_config_alone_counts_each_format(tmp_path):
    case = "qwen3_moe_bf16"
    groups = [GROUPS["nvfp4"] | {"targets": [EXPERTS]}, GROUPS["fp8"] | {"targets": ["Linear"]}]
    mixed, _ = write_mixed(tmp_path, case, format_by_place("nvfp4"), scheme_of(groups, ["lm_head", "re:.*mlp.gate$"]))
    code, whole, err = run("plan", mixed, "--json")
    assert code == 0, err
    (mixed / "model.safetensors").unlink()
    code, alone, err = run("plan", mixed, "--json")
    assert code == 0, err
    weights = lambda text: {group["name"]: group["bytes"] for group in json.loads(text)["model"]["weights"]}
    assert weights(whole) == weights(alone)
    tensors = read_tensors(PARITY / case)
    experts = sum(array.size for name, array in tensors.items() if ".experts." in name)
    count = sum(".experts." in name for name in tensors)
    assert weights(alone)["experts"] == experts // 2 + experts // 16 + 4 * count


@pytest.mark.parametrize("groups, words", [
    ([GROUPS["mxfp4"] | {"targets": [EXPERTS]}, GROUPS["fp8"] | {"targets": ["re:.*proj$"]}], "an expression must leave out what another group has"),
    ([GROUPS["fp8"] | {"targets": ["Linear"], "weights": FP8_WEIGHTS | {"block_structure": [64, 64]}}], "block_structure must be [128, 128]"),
    ([GROUPS["fp8"] | {"targets": ["Linear"], "weights": FP8_WEIGHTS | {"strategy": "group"}}], 'strategy "group" is not supported for FP8'),
    ([GROUPS["fp8"] | {"targets": [ATTENTION]}], 'mlp.experts.0.gate_proj.weight" is missing'),
])
def test_groups_that_contradict_themselves_or_the_files_are_refused(tmp_path, groups, words):
    mixed, _ = write_mixed(tmp_path, "deepseek_v3_bf16", format_by_place("mxfp4"), scheme_of(groups))
    code, _, err = run("generate", mixed, "--prompt", "a", "--max-tokens", 1)
    assert code == 3 and len(err.splitlines()) == 1, err
    assert words in err


# ---- what `nibble quantize --rest` writes

MIXED_CASES = [("deepseek_v3_bf16", "mxfp4"), ("deepseek_v3_bf16", "nvfp4"), ("qwen3_next_bf16", "nvfp4"), ("qwen3_5_moe_stacked", "mxfp4")]


def module_format(module, tensors, quantized):
    """A module's format in its own scheme's words, for decoded()."""
    if f"{module}.weight_packed" in tensors:
        return quantized["config_groups"]["group_0"]
    return quantized["config_groups"]["group_1"] if f"{module}.weight_scale" in tensors else None


@pytest.mark.parametrize("case, format", MIXED_CASES)
def test_quantize_writes_experts_in_4_bits_and_the_rest_in_fp8(tmp_path, case, format):
    code, out, err = run("quantize", PARITY / case, tmp_path / "out", "--format", format, "--rest", "fp8_block", "--json")
    assert code == 0, err
    assert json.loads(out)["rest"] == "fp8_block"
    config, found = config_of(tmp_path / "out"), read_tensors(tmp_path / "out")
    scheme = config.pop("quantization_config")
    assert scheme["format"] == "mixed-precision"
    twin, kinds = {}, set()
    for name, array in found.items():
        module, _, last = name.rpartition(".")
        of_module = module_format(module, found, scheme)
        if of_module is None:
            twin[name] = array
        elif last in ("weight", "weight_packed"):
            is_expert = ".experts." in module
            assert of_module["format"] == (f"{format}-pack-quantized" if is_expert else "float-quantized"), module
            twin[module + ".weight"] = decoded(found, module, {"quant_method": "compressed-tensors"} | of_module).astype(ml_dtypes.bfloat16)
            kinds.add(module.rpartition(".")[2])
    kept = [name for name in twin if name in found and name.endswith((".mlp.gate.weight", "lm_head.weight", "_gate.weight", "in_proj_ba.weight"))]
    assert len(kept) >= 2 and {"o_proj", "down_proj"} <= kinds
    assert {name.removesuffix(".weight") for name in kept} <= set(scheme["ignore"])
    write(tmp_path / "twin", twin, config, PARITY / case)
    values, expected, wide = (logprobs(model, case, "--dtype", "float32")[0] for model in (tmp_path / "out", tmp_path / "twin", PARITY / case))
    distance = lambda other: np.sqrt(((values - other) ** 2).mean())
    assert distance(expected) < 0.3 * distance(wide)
    code, out, err = run("inspect", tmp_path / "out")
    assert code == 0 and out.splitlines()[-1].split() == ["problems", "none"], out + err


@pytest.mark.parametrize("source, options, words", [
    ("models/demo", ["--format", "mxfp4"], "gpt-oss's attention is read in bf16 alone"),
    ("qwen3_moe_bf16", ["--format", "fp8_block"], "goes with experts in 4 bits: give --format mxfp4 or nvfp4"),
    ("qwen3_moe_bf16", ["--format", "nvfp4", "--modules", "experts"], "--modules experts leaves as it is what --rest fp8_block converts"),
    ("dense", ["--format", "nvfp4"], "the model has no experts; give --format fp8_block alone"),
])
def test_a_rest_that_cannot_be_is_refused(tmp_path, source, options, words):
    folder = PARITY / source
    if source == "models/demo":
        write_wide_demo(folder := tmp_path / "demo")
    if source == "dense":
        write_tensors_alone(folder := tmp_path / "dense")
    code, _, err = run("quantize", folder, tmp_path / "out", *options, "--rest", "fp8_block")
    assert code == 2 and len(err.splitlines()) == 1, err
    assert words in err and not (tmp_path / "out").exists()


def write_tensors_alone(folder):
    folder.mkdir()
    write_tensors(folder / "model.safetensors", {"model.layers.0.mlp.up_proj.weight": np.ones((64, 64), ml_dtypes.bfloat16)})
    (folder / "config.json").write_text('{"architectures": ["Qwen3_5ForCausalLM"]}')
