"""Held-out bits a byte of an exported checkpoint, with transformers' own GptOssForCausalLM in float32, experts dequantized."""
import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import AutoTokenizer, GptOssForCausalLM, Mxfp4Config


def load(folder: Path, trained: Path | None):
    """The checkpoint; with `trained`, a model.pt of train.py, its experts as they were before quantization."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GptOssForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16, attn_implementation="eager"
    )
    if trained:
        weights = torch.load(trained, map_location="cpu")["weights"]
        for number, layer in enumerate(model.model.layers):
            for name in ("gate_up", "down"):
                expert = getattr(layer.mlp.experts, f"{name}_proj")
                expert.data.copy_(weights[f"layers.{number}.mlp.{name}"].transpose(1, 2))
    return model.float().to(device).eval(), AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def bits(model, tokenizer, folder: Path, rows: int = 8) -> tuple[float, int]:
    """Each document on its own after <|endoftext|>, in windows of the model's context; a token is counted
    once, with at least half a window before it."""
    context = model.config.max_position_embeddings
    windows, size = [], 0  # (ids, how many of its predictions an earlier window has counted)
    for text in (folder / "heldout.txt").read_text().split("<|endoftext|>"):
        text = text.strip()
        if not text:
            continue
        size += len(text.encode())
        ids = torch.tensor([tokenizer.pad_token_id] + tokenizer.encode(text, add_special_tokens=False))
        counted = 1
        for start in range(0, len(ids), context // 2):
            window = ids[start:start + context + 1]
            windows.append((window, counted - start - 1))
            counted = start + len(window)
            if counted == len(ids):
                break
    windows.sort(key=lambda window: len(window[0]))
    total = 0.0
    for first in tqdm(range(0, len(windows), rows), desc="windows", disable=None):
        batch = windows[first:first + rows]
        ids = pad_sequence([ids for ids, _ in batch], batch_first=True, padding_value=tokenizer.pad_token_id).to(model.device)
        logits = model(ids[:, :-1]).logits  # what is padded comes last, where no token before it looks
        losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        for row, (ids, counted) in zip(losses, batch):
            total += row[counted:len(ids) - 1].double().sum().item()
    return total / math.log(2) / size, size


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tales", type=Path, help="the folder of heldout.txt")
    parser.add_argument("--before-quantization", type=Path, metavar="MODEL_PT", help="take the experts from this file of train.py")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.checkpoint, arguments.before_quantization)
    result, size = bits(model, tokenizer, arguments.tales)
    print(f"{result:.4f} bits a byte over {size} bytes")


if __name__ == "__main__":
    main()
