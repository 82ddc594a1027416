#!/usr/bin/env python3
"""Writes one random model twice, with the same weights: as a checkpoint for nibble and as GGUF for llama.cpp.

    bench/random_pair.py FOLDER --shape qwen3-30b-a3b [--share 4] [--seed 1]

FOLDER/hf/ is the checkpoint: experts in compressed-tensors' mxfp4-pack-quantized, the rest in bf16. FOLDER/model.gguf has
experts in MXFP4, other matrices in Q8_0 or with --rest bf16 in bf16, and routers and vectors in F32. --share 4 writes a quarter of the model: a quarter
of its layers and of its vocabulary, so that a step is a quarter of the whole model's in every part of it.

A dense weight is q x 2^-k with an int8 q, one k for a block of 32, and one q of a block is 127 or -127. So it is exact in
bf16 and in Q8_0, and making eight bits of the bf16 weights finds the same bits.

Needs numpy and gguf (PyPI).
"""
import argparse
import json
import math
import statistics
import zlib
from pathlib import Path

import gguf
import numpy as np

CODE_DEVIATION = 40.0  # of q
BRANCH = 2  # what o_proj and down_proj give is 2^-2 of unit gain, so that rounding does not swing the routers of later layers
SHAPES = {
    "qwen3-30b-a3b": dict(
        layers=48, vocab=151936, hidden=2048, heads=32, kv_heads=4, head_dim=128, experts=128, chosen=8, width=768,
        theta=1e6, delta=None),
    "qwen3.6-35b-a3b": dict(
        layers=40, vocab=248320, hidden=2048, heads=16, kv_heads=2, head_dim=256, experts=256, chosen=8, width=512,
        theta=1e7, delta=dict(key_heads=16, value_heads=32, dim=128, taps=4), shared=512, rotary=64),
}


def bf16_bits(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def floats(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Weights:
    """Random values by a tensor's name."""

    def __init__(self, seed: int):
        self.seed = seed
        normal = statistics.NormalDist(0, CODE_DEVIATION)
        self.codes = np.clip(np.rint([normal.inv_cdf((i + 0.5) / 65536) for i in range(65536)]), -126, 126).astype(np.int8)

    def random(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self.seed, zlib.crc32(name.encode())]))

    def dense(self, name: str, rows: int, cols: int, gain: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """int8 q [rows, cols / 32, 32] and k [rows, cols / 32]."""
        random = self.random(name)
        q = self.codes[random.integers(0, 65536, rows * cols, dtype=np.uint16)].reshape(-1, 32)
        chosen = random.integers(0, 256, (len(q), 2), dtype=np.uint8)
        q[np.arange(len(q)), chosen[:, 0] & 31] = np.where(chosen[:, 0] & 128, 127, -127)
        k = round(math.log2(CODE_DEVIATION * math.sqrt(cols) / gain)) + (chosen[:, 1] & 1)
        return q.reshape(rows, -1, 32), k.astype(np.uint8).reshape(rows, -1)

    def vector(self, name: str, shape: tuple, deviation: float, mean: float = 0.0) -> np.ndarray:
        return bf16_bits(self.random(name).standard_normal(shape, dtype=np.float32) * deviation + mean)

    def mxfp4(self, name: str, rows: int, cols: int, gain: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Codes [rows, cols / 32, 16], of which a byte has two neighbours, and scales [rows, cols / 32]."""
        random = self.random(name)
        codes = np.frombuffer(random.bytes(rows * cols // 2), np.uint8).reshape(rows, cols // 32, 16)
        scale = 127 - round(math.log2(2.93 * math.sqrt(cols) / gain))
        jitter = np.frombuffer(random.bytes(rows * cols // 32), np.uint8) & 1
        return codes, (scale - jitter).astype(np.uint8).reshape(rows, -1)


def dense_bf16(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    values = np.ldexp(q.astype(np.float32), -k.astype(np.int32)[..., None])
    return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(len(q), -1)


def dense_q8_0(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    blocks = np.empty(q.shape[:2] + (34,), np.uint8)
    blocks[..., :2] = np.ldexp(np.float32(1), -k.astype(np.int32)).astype(np.float16)[..., None].view(np.uint8)
    blocks[..., 2:] = q.view(np.uint8)
    return blocks.reshape(len(q), -1)


def mxfp4_blocks(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """GGUF's: the scale, then bytes of which byte j has the elements j and j + 16."""
    element = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[:-1] + (32,))
    blocks = np.empty(scales.shape + (17,), np.uint8)
    blocks[..., 0] = scales
    blocks[..., 1:] = element[..., :16] | element[..., 16:] << 4
    return blocks.reshape(len(codes), -1)


def tiled_heads(values: np.ndarray, key_heads: int, axis: int = 0) -> np.ndarray:
    """llama.cpp has a key head's heads of values apart: first each one's first, then each one's second."""
    shape = values.shape
    rest = shape[axis] // key_heads
    heads = 2  # of values a head of keys
    split = values.reshape(shape[:axis] + (key_heads, heads, rest // heads) + shape[axis + 1:])
    return np.swapaxes(split, axis, axis + 1).reshape(shape)


class Pair:
    """Both files. Tensors are told first, by what makes them, and written when all are known."""

    def __init__(self, weights: Weights, shape: dict, rest: str):
        self.weights, self.shape, self.rest = weights, shape, rest
        self.tensors = []  # (name in the checkpoint, dtype, shape, make)
        self.peers = []    # (name in GGUF, format, shape, make)

    def dense(self, name: str, peer: str, rows: int, cols: int, gain: float = 1.0, order=lambda blocks: blocks):
        def both():
            return self.weights.dense(name, rows, cols, gain)
        encode = {"q8_0": dense_q8_0, "bf16": dense_bf16}[self.rest]
        self.tensors.append((name + ".weight", "BF16", (rows, cols), lambda: dense_bf16(*both())))
        self.peers.append((peer + ".weight", self.rest, (rows, cols), lambda: encode(*map(order, both()))))

    def vector(self, name: str, peer: str, shape: tuple, deviation: float, mean: float = 0.0, order=lambda values: values):
        def values():
            return self.weights.vector(name, shape, deviation, mean)
        self.tensors.append((name, "BF16", shape, values))
        peers_shape = tuple(size for size in shape if size > 1)
        self.peers.append((peer, "f32", peers_shape, lambda: order(floats(values()))))

    def norm(self, name: str, peer: str, size: int, is_zero_centred: bool):
        mean = 0.0 if is_zero_centred else 1.0
        self.vector(name, peer, (size,), 0.1, mean, lambda values: values + 1 - np.float32(mean))

    def experts(self, name: str, peer: str, rows: int, cols: int, gain: float = 1.0):
        def of(expert: int):
            return self.weights.mxfp4(name.format(expert), rows, cols, gain)
        count = self.shape["experts"]
        for expert in range(count):
            each = name.format(expert)
            self.tensors.append((each + ".weight_packed", "U8", (rows, cols // 2), lambda e=expert: of(e)[0]))
            self.tensors.append((each + ".weight_scale", "U8", (rows, cols // 32), lambda e=expert: of(e)[1]))
        self.peers.append((peer + ".weight", "mxfp4", (count, rows, cols),
                           lambda: np.stack([mxfp4_blocks(*of(expert)) for expert in range(count)])))

    def write_checkpoint(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, dtype, shape, _ in self.tensors:
            size = math.prod(shape) * (2 if dtype == "BF16" else 1)
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / "model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for *_, make in self.tensors:
                np.ascontiguousarray(make()).tofile(file)
        (folder / "config.json").write_text(json.dumps(config(self.shape), indent=1))

    def write_peer(self, path: Path):
        kinds = gguf.GGMLQuantizationType
        writer = gguf.GGUFWriter(path, "qwen35moe" if self.shape["delta"] else "qwen3moe")
        describe(writer, self.shape)
        for name, kind, shape, _ in self.peers:
            if kind == "f32":
                writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * math.prod(shape))
                continue
            if kind == "bf16":
                writer.add_tensor_info(name, shape, np.dtype(np.float16), 2 * math.prod(shape), kinds.BF16)
                continue
            block = 17 if kind == "mxfp4" else 34
            stored = shape[:-1] + (shape[-1] // 32 * block,)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored),
                                   kinds.MXFP4 if kind == "mxfp4" else kinds.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        file = writer.fout[0]
        for *_, make in self.peers:
            file.write(b"\0" * (-file.tell() % 32))
            np.ascontiguousarray(make()).tofile(file)
        file.write(b"\0" * (-file.tell() % 32))
        writer.close()


def describe(writer: gguf.GGUFWriter, shape: dict):
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(shape["vocab"])
    writer.add_block_count(shape["layers"])
    writer.add_context_length(40960)
    writer.add_embedding_length(shape["hidden"])
    writer.add_feed_forward_length(shape["width"])
    writer.add_expert_feed_forward_length(shape["width"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_rope_freq_base(shape["theta"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(shape["experts"])
    writer.add_expert_used_count(shape["chosen"])
    writer.add_rope_dimension_count(shape.get("rotary", shape["head_dim"]))
    delta = shape["delta"]
    if delta is None:
        return
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_expert_shared_feed_forward_length(shape["shared"])
    writer.add_ssm_conv_kernel(delta["taps"])
    writer.add_ssm_state_size(delta["dim"])
    writer.add_ssm_group_count(delta["key_heads"])
    writer.add_ssm_time_step_rank(delta["value_heads"])
    writer.add_ssm_inner_size(delta["value_heads"] * delta["dim"])
    writer.add_full_attention_interval(4)


def config(shape: dict) -> dict:
    delta = shape["delta"]
    fields = {
        "architectures": ["Qwen3_5MoeForCausalLM" if delta else "Qwen3MoeForCausalLM"], "hidden_act": "silu",
        "model_type": "qwen3_5_moe_text" if delta else "qwen3_moe",
        "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": shape["theta"], "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16", "eos_token_id": 2, "vocab_size": shape["vocab"], "hidden_size": shape["hidden"],
        "num_hidden_layers": shape["layers"], "head_dim": shape["head_dim"], "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"], "num_experts": shape["experts"], "num_experts_per_tok": shape["chosen"],
        "moe_intermediate_size": shape["width"], "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
            "config_groups": {"group_0": {
                "targets": ["Linear"], "input_activations": None,
                "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True,
                            "dynamic": False}}},
            "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*", "re:.*linear_attn.*", "re:.*shared_expert.*"]}}
    if delta is None:
        return fields | {"norm_topk_prob": True, "rope_scaling": None, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return fields | {
        "partial_rotary_factor": shape["rotary"] / shape["head_dim"], "shared_expert_intermediate_size": shape["shared"],
        "layer_types": [("full" if layer % 4 == 3 else "linear") + "_attention" for layer in range(shape["layers"])],
        "linear_conv_kernel_dim": delta["taps"], "linear_key_head_dim": delta["dim"], "linear_value_head_dim": delta["dim"],
        "linear_num_key_heads": delta["key_heads"], "linear_num_value_heads": delta["value_heads"]}


def tell_attention(pair: Pair, module: str, block: str):
    shape = pair.shape
    hidden, dim, heads, kv_heads = shape["hidden"], shape["head_dim"], shape["heads"], shape["kv_heads"]
    pair.dense(module + "q_proj", block + "attn_q", heads * dim * (2 if shape["delta"] else 1), hidden)
    pair.dense(module + "k_proj", block + "attn_k", kv_heads * dim, hidden)
    pair.dense(module + "v_proj", block + "attn_v", kv_heads * dim, hidden)
    pair.norm(module + "q_norm.weight", block + "attn_q_norm.weight", dim, bool(shape["delta"]))
    pair.norm(module + "k_norm.weight", block + "attn_k_norm.weight", dim, bool(shape["delta"]))
    pair.dense(module + "o_proj", block + "attn_output", hidden, heads * dim, 2.0 ** -BRANCH)


def tell_delta(pair: Pair, module: str, block: str):
    delta, hidden = pair.shape["delta"], pair.shape["hidden"]
    keys, values = delta["key_heads"] * delta["dim"], delta["value_heads"] * delta["dim"]

    def heads(blocks):
        return tiled_heads(blocks, delta["key_heads"])

    def channels(blocks):
        return np.concatenate([blocks[:2 * keys], heads(blocks[2 * keys:])])

    pair.dense(module + "in_proj_qkv", block + "attn_qkv", 2 * keys + values, hidden, order=channels)
    pair.dense(module + "in_proj_z", block + "attn_gate", values, hidden, order=heads)
    pair.dense(module + "in_proj_b", block + "ssm_beta", delta["value_heads"], hidden, order=heads)
    pair.dense(module + "in_proj_a", block + "ssm_alpha", delta["value_heads"], hidden, order=heads)
    pair.vector(module + "conv1d.weight", block + "ssm_conv1d.weight", (2 * keys + values, 1, delta["taps"]), 0.3,
                order=channels)
    pair.vector(module + "dt_bias", block + "ssm_dt.bias", (delta["value_heads"],), 0.5, order=heads)
    pair.vector(module + "A_log", block + "ssm_a", (delta["value_heads"],), 0.5,
                order=lambda log_rates: heads(-np.exp(log_rates)))
    pair.norm(module + "norm.weight", block + "ssm_norm.weight", delta["dim"], False)
    pair.dense(module + "out_proj", block + "ssm_out", hidden, values, 2.0 ** -BRANCH,
               order=lambda blocks: tiled_heads(blocks, delta["key_heads"], axis=1))


def tell_layer(pair: Pair, layer: int):
    shape = pair.shape
    hidden, width, delta = shape["hidden"], shape["width"], shape["delta"]
    module, block = f"model.layers.{layer}.", f"blk.{layer}."
    pair.norm(module + "input_layernorm.weight", block + "attn_norm.weight", hidden, bool(delta))
    if delta and layer % 4 != 3:
        tell_delta(pair, module + "linear_attn.", block)
    else:
        tell_attention(pair, module + "self_attn.", block)
    pair.norm(module + "post_attention_layernorm.weight", block + ("post_attention_norm" if delta else "ffn_norm") + ".weight",
              hidden, bool(delta))
    module += "mlp."
    pair.vector(module + "gate.weight", block + "ffn_gate_inp.weight", (shape["experts"], hidden), 1.5 / math.sqrt(hidden))
    pair.experts(module + "experts.{}.gate_proj", block + "ffn_gate_exps", width, hidden)
    pair.experts(module + "experts.{}.up_proj", block + "ffn_up_exps", width, hidden)
    pair.experts(module + "experts.{}.down_proj", block + "ffn_down_exps", hidden, width, 2.0 ** -BRANCH)
    if not delta:
        return
    pair.vector(module + "shared_expert_gate.weight", block + "ffn_gate_inp_shexp.weight", (1, hidden), 1 / math.sqrt(hidden))
    pair.dense(module + "shared_expert.gate_proj", block + "ffn_gate_shexp", shape["shared"], hidden)
    pair.dense(module + "shared_expert.up_proj", block + "ffn_up_shexp", shape["shared"], hidden)
    pair.dense(module + "shared_expert.down_proj", block + "ffn_down_shexp", hidden, shape["shared"], 2.0 ** -BRANCH)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--share", type=int, default=1, help="of the model: one N-th of its layers and vocabulary")
    parser.add_argument("--rest", choices=("q8_0", "bf16"), default="q8_0", help="format of the peer's other matrices")
    parser.add_argument("--only", choices=("checkpoint", "peer"), help="one of the two")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    shape = dict(SHAPES[arguments.shape])
    shape["layers"] //= arguments.share
    shape["vocab"] = shape["vocab"] // arguments.share // 64 * 64

    pair = Pair(Weights(arguments.seed), shape, arguments.rest)
    pair.dense("model.embed_tokens", "token_embd", shape["vocab"], shape["hidden"], math.sqrt(shape["hidden"]))
    for layer in range(shape["layers"]):
        tell_layer(pair, layer)
    pair.norm("model.norm.weight", "output_norm.weight", shape["hidden"], bool(shape["delta"]))
    pair.dense("lm_head", "output", shape["vocab"], shape["hidden"])
    if arguments.only != "peer":
        pair.write_checkpoint(arguments.folder / "hf")
    if arguments.only != "checkpoint":
        pair.write_peer(arguments.folder / "model.gguf")


if __name__ == "__main__":
    main()
