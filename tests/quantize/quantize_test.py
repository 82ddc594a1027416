"""`nibble quantize`: what it writes, read by numpy, ml_dtypes and the reference safetensors; what it refuses."""
import json
import shutil

import ml_dtypes
import numpy as np
import pytest

from checkpoints import (config_of, decoded, mxfp4_values, random_weights, read_tensors, write_moe, write_small_gpt_oss,
                         write_tensors, write_wide_demo)
from nibble_program import generate, run

FORMATS = ["mxfp4", "nvfp4", "fp8_block", "mxfp8"]


def quantize(*arguments, **more):
    code, out, err = run("quantize", *arguments, "--json", **more)
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def wide_demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide") / "demo"
    write_wide_demo(folder)
    return folder


def test_the_demo_model_comes_back_as_it_was(wide_demo, tmp_path):
    report = quantize(wide_demo, tmp_path / "out", "--format", "mxfp4")
    assert report["relative_error"] == 0 and report["decibels"] is None
    asked = ["--chat", "--prompt", "Tell me a story", "--max-tokens", "40", "--seed", "3", "--logprobs", "3"]
    (expected,), (found,) = generate("demo", *asked), generate(tmp_path / "out", *asked)
    assert {k: v for k, v in found.items() if k != "timings"} == {k: v for k, v in expected.items() if k != "timings"}
    assert config_of(tmp_path / "out")["quantization_config"]["quant_method"] == "mxfp4"
    assert run("inspect", tmp_path / "out")[0] == 0


def test_gpt_oss_experts_decode_to_the_nearest_values(tmp_path):
    tensors = write_small_gpt_oss(tmp_path / "src")
    report = quantize(tmp_path / "src", tmp_path / "out", "--format", "mxfp4")
    found = read_tensors(tmp_path / "out")
    prefix = "model.layers.0.mlp.experts."
    for name, shape in (("gate_up_proj", (2, 192, 2, 16)), ("down_proj", (2, 64, 3, 16))):
        blocks, scales = found[prefix + name + "_blocks"], found[prefix + name + "_scales"]
        assert blocks.shape == shape and scales.shape == shape[:3]
        wide = tensors[prefix + name].astype(np.float32).transpose(0, 2, 1)
        values = mxfp4_values(blocks, scales).reshape(wide.shape)
        amax = np.abs(wide).reshape(*shape[:3], 32).max(axis=-1)
        assert (np.exp2(scales.astype(np.float32) - 127) == np.exp2(np.ceil(np.log2(amax / 6)))).all()
        unit = wide.reshape(*shape[:3], 32) / np.exp2(scales.astype(np.float32) - 127)[..., None]
        nearest = unit.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
        assert (values.reshape(unit.shape) / np.exp2(scales.astype(np.float32) - 127)[..., None] == nearest).all()
        error = np.sqrt(((wide - values) ** 2).sum() / (wide ** 2).sum())
        reported = next(m for m in report["modules"] if m["name"] == prefix + name)
        assert reported["relative_error"] == pytest.approx(error, rel=1e-5)
        assert reported["largest_error"] == pytest.approx(np.abs(wide - values).max(), rel=1e-6)
        assert (found[prefix + name + "_bias"] == tensors[prefix + name + "_bias"]).all()


@pytest.mark.parametrize("format", FORMATS[1:])
def test_gpt_oss_experts_are_taken_apart_for_formats_of_linear_modules(tmp_path, format):
    tensors = write_small_gpt_oss(tmp_path / "src")
    quantize(tmp_path / "src", tmp_path / "out", "--format", format)
    found, config = read_tensors(tmp_path / "out"), config_of(tmp_path / "out")["quantization_config"]
    prefix = "model.layers.0.mlp.experts."
    for expert in range(2):
        both = tensors[prefix + "gate_up_proj"][expert].astype(np.float32).T
        bias = tensors[prefix + "gate_up_proj_bias"][expert]
        down = tensors[prefix + "down_proj"][expert].astype(np.float32).T
        for name, rows, row_bias in (("gate_proj", both[0::2], bias[0::2]), ("up_proj", both[1::2], bias[1::2]),
                                     ("down_proj", down, tensors[prefix + "down_proj_bias"][expert])):
            module = f"{prefix}{expert}.{name}"
            values = decoded(found, module, config)
            assert np.sqrt(((rows - values) ** 2).mean() / (rows ** 2).mean()) < (0.12 if format == "nvfp4" else 0.03)
            assert (found[module + ".bias"] == row_bias).all()


def test_every_format_decodes_to_what_numpy_rounds_to(tmp_path):
    tensors = write_moe(tmp_path / "src")
    for format in FORMATS:
        out = tmp_path / format
        report = quantize(tmp_path / "src", out, "--format", format, "--modules", "linear", "--include", "lm_head")
        found, config = read_tensors(out), config_of(out)["quantization_config"]
        modules = {module["name"] for module in report["modules"]}
        assert "lm_head" in modules and "model.layers.0.mlp.gate" not in modules and len(modules) == 11
        for name, wide in tensors.items():
            module = name.removesuffix(".weight")
            if module not in modules:
                assert (found[name] == wide).all()
                continue
            wide = wide.astype(np.float32)
            values = decoded(found, module, config)
            step = wide_step(format, wide, values, found, module)
            assert (np.abs(wide - values) <= step * (1 + 1e-5)).all(), (format, module)
        assert (out / "tokenizer.json").read_text() == '{"made": "up"}'
        assert (out / "vocab.txt").exists() and not (out / "pytorch_model.bin").exists()
        assert report["not_copied"] == ["original", "pytorch_model.bin"]
        assert config_of(out)["rms_norm_eps"] == 1e-6
        kept = config.get("ignore", config.get("modules_to_not_convert"))
        assert kept == ["model.layers.0.mlp.gate"]


def wide_step(format, wide, values, found, module):
    """Half of the distance between neighbours of the format around each value, at its scale."""
    if format == "fp8_block":
        scales = found[module + ".weight_scale_inv"]
        scales = np.repeat(np.repeat(scales, 128, axis=0), 128, axis=1)[:wide.shape[0], :wide.shape[1]]
    else:
        scales = found[module + ".weight_scale"]
        scales = scales.astype(np.float32) / found[module + ".weight_global_scale"] if format == "nvfp4" else \
            np.exp2(scales.astype(np.float32) - 127)
        scales = np.repeat(scales, wide.shape[1] // scales.shape[1], axis=1)
    mantissa, least = (1, 0) if format in ("mxfp4", "nvfp4") else (3, -6)
    exponent = np.floor(np.log2(np.maximum(np.abs(values) / scales, 2.0 ** least)))
    slack = 2 if format == "nvfp4" else 1  # a scale may be rounded down: the largest value of a block saturates then
    return np.exp2(exponent - mantissa - 1) * scales * slack


def test_nvfp4_shares_the_global_scale_of_what_is_multiplied_at_once(tmp_path):
    write_moe(tmp_path / "src")
    quantize(tmp_path / "src", tmp_path / "out", "--format", "nvfp4", "--modules", "linear")
    found = read_tensors(tmp_path / "out")
    scale = {name: float(array[0]) for name, array in found.items() if name.endswith("weight_global_scale")}
    attention, expert = "model.layers.0.self_attn.", "model.layers.0.mlp.experts.1."
    of = lambda module: scale[module + ".weight_global_scale"]
    assert of(attention + "q_proj") == of(attention + "k_proj") == of(attention + "v_proj") != of(attention + "o_proj")
    assert of(expert + "gate_proj") == of(expert + "up_proj") != of(expert + "down_proj")


@pytest.mark.parametrize("format", FORMATS)
def test_a_search_for_scales_never_makes_the_error_larger(tmp_path, format):
    write_moe(tmp_path / "src")
    plain = quantize(tmp_path / "src", tmp_path / "plain", "--format", format)
    searched = quantize(tmp_path / "src", tmp_path / "searched", "--format", format, "--scale-search")
    for before, after in zip(plain["modules"], searched["modules"]):
        assert before["name"] == after["name"] and after["relative_error"] <= before["relative_error"] * (1 + 1e-6)
    gain = searched["relative_error"] / plain["relative_error"]
    assert gain <= (0.97 if format in ("mxfp4", "nvfp4") else 1)


def test_bytes_depend_neither_on_threads_nor_on_files(tmp_path):
    write_moe(tmp_path / "src", layers=2)
    for format in ("nvfp4", "fp8_block"):
        quantize(tmp_path / "src", tmp_path / f"{format}1", "--format", format, "--threads", "1")
        quantize(tmp_path / "src", tmp_path / f"{format}3", "--format", format, "--threads", "3")
        quantize(tmp_path / "src", tmp_path / f"{format}s", "--format", format, "--shard-size", "0.0001")
        one, three, shards = (read_tensors(tmp_path / f"{format}{kind}") for kind in "13s")
        assert len(list((tmp_path / f"{format}s").glob("model-*-of-*.safetensors"))) > 3
        assert one.keys() == three.keys() == shards.keys()
        for name in one:
            assert one[name].tobytes() == three[name].tobytes() == shards[name].tobytes()


def test_float32_and_float16_sources_are_read_too(tmp_path):
    expected = {}
    for dtype in (ml_dtypes.bfloat16, np.float32, np.float16):
        folder = tmp_path / np.dtype(dtype).name
        folder.mkdir()
        write_tensors(folder / "model.safetensors", {"a.weight": random_weights(1, (96, 64)).astype(dtype)})
        (folder / "config.json").write_text("{}")
        quantize(folder, tmp_path / (folder.name + "-out"), "--format", "mxfp4")
        expected[folder.name] = read_tensors(tmp_path / (folder.name + "-out"))["a.weight_packed"]
    assert (expected["bfloat16"] == expected["float32"]).all()
    assert (expected["bfloat16"] != expected["float16"]).mean() < 0.01  # a few small values differ as float16


def test_perplexity_after_is_reported_and_the_reason_where_there_is_none_before(wide_demo, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a little fox who lived in a forest.")
    report = quantize(wide_demo, tmp_path / "out", "--format", "mxfp4", "--score", text)
    expected = json.loads(run("score", "demo", text, "--json")[1])["perplexity"]
    assert report["perplexity"]["after"] == expected
    assert report["perplexity"]["before"] in (None, pytest.approx(expected, rel=1e-3))


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8"])
def test_a_model_in_a_format_that_nothing_here_runs_is_refused_by_plan_and_run(wide_demo, tmp_path, format):
    quantize(wide_demo, tmp_path / "out", "--format", format)
    for command in [["plan", tmp_path / "out"], ["plan", tmp_path / "out", "--as", "h200x1"],
                    ["generate", tmp_path / "out", "--prompt-ids", "1,2", "--max-tokens", "1"]]:
        code, out, err = run(*command)
        assert code != 0 and out == "", command
        assert 'quantization_config.quant_method must be "mxfp4", not "compressed-tensors"' in err, err


def refused(arguments, code, *words):
    found, out, err = run("quantize", *arguments)
    assert found == code and out == "", (found, err)
    for word in words:
        assert word in err, err
    assert err.startswith("error: ") and err.count("\n") == 1


def test_refusals_name_what_is_wrong(tmp_path):
    src, out = tmp_path / "src", tmp_path / "out"
    write_moe(src)
    refused([src, out], 2, "--format is missing")
    refused([src, out, "--format", "int4"], 2, "mxfp4", "nvfp4")
    refused([src, src / "inside", "--format", "mxfp4"], 2, "lies inside SRC")
    refused([src, src, "--format", "mxfp4"], 2, "lies inside SRC")
    (tmp_path / "link").symlink_to(src)
    refused([src, tmp_path / "link" / "inside", "--format", "mxfp4"], 2, "lies inside SRC")
    refused([src, tmp_path / "no" / "such", "--format", "mxfp4"], 2, "make it first")
    refused([tmp_path / "nothing", out, "--format", "mxfp4"], 3, "no model")
    refused([src, out, "--format", "mxfp4", "--include", "*.nothing"], 2, "--include", "matches no module")
    refused([src, out, "--format", "mxfp4", "--include", "*embed*"], 2, "an embedding")
    refused([src, out, "--format", "mxfp4", "--exclude", "*"], 2, "leaves nothing to quantize")
    quantize(src, out, "--format", "mxfp4")
    refused([src, out, "--format", "mxfp4"], 2, "exists")
    refused([out, tmp_path / "again", "--format", "mxfp4"], 2, "quantized already", "compressed-tensors")
    refused(["demo", tmp_path / "again", "--format", "nvfp4"], 2, "quantized already")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out", "src"]


def test_sources_that_cannot_be_quantized_are_refused(tmp_path):
    def source(name, tensors, config="{}"):
        folder = tmp_path / name
        folder.mkdir()
        write_tensors(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(config)
        return folder
    odd = source("odd", {"a.weight": random_weights(1, (4, 40))})
    refused([odd, tmp_path / "out", "--format", "mxfp4"], 2, '"a" has 40 inputs', "32s")
    quantize(odd, tmp_path / "whole", "--format", "fp8_block")
    bad = random_weights(1, (300, 64))
    bad[257, 3] = np.nan
    for format in FORMATS:
        refused([source("nan" + format, {"a.weight": bad}), tmp_path / "out", "--format", format], 3, "not finite")
    fused = source("fused", {"model.mlp.experts.gate_up_proj": random_weights(1, (2, 64, 64)),
                             "a.weight": random_weights(1, (64, 64))})
    refused([fused, tmp_path / "out", "--format", "mxfp4"], 2, "fused experts")
    refused([source("broken", {"a.weight": random_weights(1, (64, 64))}, "{,}"), tmp_path / "out", "--format", "mxfp4"],
            3, "config.json")
    gpt_oss = tmp_path / "gpt_oss"
    write_small_gpt_oss(gpt_oss)
    refused([gpt_oss, tmp_path / "out", "--format", "mxfp4", "--include", "*router"], 2, "its experts")
    (tmp_path / "cut").mkdir()
    shutil.copy(odd / "config.json", tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes((odd / "model.safetensors").read_bytes()[:-10])
    refused([tmp_path / "cut", tmp_path / "out", "--format", "fp8_block"], 3, "truncated")
    assert not (tmp_path / "out").exists()
