"""Wide checkpoints to quantize, and readers of the quantized ones that share no code with nibble: numpy, ml_dtypes and
the reference safetensors."""
import json
import shutil
import struct

import ml_dtypes
import numpy as np
from safetensors import deserialize

from nibble_program import ROOT

NUMPY = {"BF16": ml_dtypes.bfloat16, "F32": np.float32, "F16": np.float16, "U8": np.uint8, "I32": np.int32, "I64": np.int64,
         "F8_E4M3": ml_dtypes.float8_e4m3fn}
STORED = {np.dtype(value): key for key, value in NUMPY.items()}
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def write_header(out, header, misaligned=False):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + misaligned)
    out.write(struct.pack("<Q", len(text)) + text)
    return 8 + len(text)


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": STORED[array.dtype], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    with open(path, "wb") as out:
        write_header(out, header)
        for array in tensors.values():
            out.write(np.ascontiguousarray(array).tobytes())


def write_sparse(path, shapes, misaligned=False):
    """A file of bf16 zeros that takes no room; misaligned, every element lies at an odd offset."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    with open(path, "wb") as out:
        out.truncate(write_header(out, header, misaligned) + offset)


def read_tensors(folder):
    """Every tensor of a folder's files, which an index has to name where they are several."""
    found, where = {}, {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, view in deserialize(file.read_bytes()):
            assert name not in found
            found[name] = np.frombuffer(view["data"], NUMPY[view["dtype"]]).reshape(view["shape"])
            where[name] = file.name
    index = folder / "model.safetensors.index.json"
    assert index.exists() == (len(set(where.values())) > 1)
    if index.exists():
        assert json.loads(index.read_text())["weight_map"] == where
    return found


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def random_weights(seed, shape, spread=0.05):
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(ml_dtypes.bfloat16)


def write_moe(folder, layers=1, experts=2, hidden=192, width=96):
    """A checkpoint in the shape of Qwen3-MoE: experts as linear modules of their own."""
    folder.mkdir()
    tensors = {"model.embed_tokens.weight": random_weights(1, (64, hidden)),
               "lm_head.weight": random_weights(2, (64, hidden)),
               "model.norm.weight": random_weights(3, (hidden,))}
    seed = 10
    for layer in range(layers):
        shapes = {"self_attn.q_proj": (160, hidden), "self_attn.k_proj": (32, hidden), "self_attn.v_proj": (32, hidden),
                  "self_attn.o_proj": (hidden, 160), "mlp.gate": (experts, hidden)}
        for expert in range(experts):
            shapes |= {f"mlp.experts.{expert}.gate_proj": (width, hidden), f"mlp.experts.{expert}.up_proj": (width, hidden),
                       f"mlp.experts.{expert}.down_proj": (hidden, width)}
        for name, shape in shapes.items():
            seed += 1
            tensors[f"model.layers.{layer}.{name}.weight"] = random_weights(seed, shape, 0.01 * (1 + seed % 7))
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = random_weights(5, (hidden,))
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text('{\n  "architectures": ["Qwen3MoeForCausalLM"],\n  "rms_norm_eps": 1e-06\n}\n')
    (folder / "tokenizer.json").write_text('{"made": "up"}')
    (folder / "vocab.txt").write_text("a\nb\n")
    (folder / "pytorch_model.bin").write_bytes(b"other weights")
    (folder / "original").mkdir()
    return tensors


def mxfp4_values(blocks, scales):
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], -1)
    return E2M1[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]


def write_wide_demo(folder):
    """The demo model with its experts in bf16, transposed as gpt-oss stores them: what MXFP4 holds fits exactly."""
    demo = ROOT / "models/demo"
    folder.mkdir()
    tensors = read_tensors(demo)
    for name in [name for name in tensors if name.endswith("_blocks")]:
        blocks, scales = tensors.pop(name), tensors.pop(name.replace("_blocks", "_scales"))
        rows = mxfp4_values(blocks, scales).reshape(*blocks.shape[:2], -1)
        tensors[name.removesuffix("_blocks")] = rows.transpose(0, 2, 1).astype(ml_dtypes.bfloat16)
    write_tensors(folder / "model.safetensors", tensors)
    config = config_of(demo)
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for file in demo.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, folder)
    return tensors


def write_small_gpt_oss(folder, experts=2, hidden=64, width=96):
    folder.mkdir()
    prefix = "model.layers.0.mlp.experts."
    tensors = {prefix + "gate_up_proj": random_weights(1, (experts, hidden, 2 * width)),
               prefix + "gate_up_proj_bias": random_weights(2, (experts, 2 * width)),
               prefix + "down_proj": random_weights(3, (experts, width, hidden)),
               prefix + "down_proj_bias": random_weights(4, (experts, hidden)),
               "model.layers.0.mlp.router.weight": random_weights(5, (experts, hidden)),
               "model.embed_tokens.weight": random_weights(6, (32, hidden))}
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text('{"architectures": ["GptOssForCausalLM"]}')
    return tensors


def decoded(tensors, module, config):
    """A module's weights as float32, read as its format's consumers do."""
    def scales_over(scales, rows, cols):
        return np.repeat(scales, cols // scales.shape[1], axis=1)
    if config["quant_method"] == "fp8" or config["format"] == "float-quantized":
        suffix = ".weight_scale_inv" if config["quant_method"] == "fp8" else ".weight_scale"
        codes, scales = tensors[module + ".weight"].astype(np.float32), tensors[module + suffix].astype(np.float32)
        if scales.shape == (len(codes), 1):  # by channel
            return codes * scales
        wide = np.repeat(np.repeat(scales, 128, axis=0), 128, axis=1)
        return codes * wide[:codes.shape[0], :codes.shape[1]]
    name = config["format"]
    if name == "mxfp8-quantized":
        codes = tensors[module + ".weight"].astype(np.float32)
        scales = np.exp2(tensors[module + ".weight_scale"].astype(np.float32) - 127)
        return codes * scales_over(scales, *codes.shape)
    packed = tensors[module + ".weight_packed"]
    codes = E2M1[np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)]
    if name == "mxfp4-pack-quantized":
        scales = np.exp2(tensors[module + ".weight_scale"].astype(np.float32) - 127)
    else:
        assert name == "nvfp4-pack-quantized"
        scales = tensors[module + ".weight_scale"].astype(np.float32) / tensors[module + ".weight_global_scale"]
    return codes * scales_over(scales, *codes.shape)
