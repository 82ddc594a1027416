"""Measure an exported checkpoint with transformers' own GptOssForCausalLM, in float32, experts dequantized.

  python evaluate.py bits CHECKPOINT TALES_FOLDER       held-out bits a byte
  python evaluate.py stories CHECKPOINT PROMPTS_TXT     answer every prompt, print Markdown
"""
import argparse
import math
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, GptOssForCausalLM, Mxfp4Config


def load(folder: Path):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GptOssForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16, attn_implementation="eager"
    )
    return model.float().to(device).eval(), AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def bits(model, tokenizer, folder: Path) -> tuple[float, int]:
    """Each document on its own after <|endoftext|>, in windows of the model's context; a token is counted
    once, with at least half a window before it."""
    context = model.config.max_position_embeddings
    total = size = 0
    for text in (folder / "heldout.txt").read_text().split("<|endoftext|>"):
        text = text.strip()
        if not text:
            continue
        size += len(text)
        ids = torch.tensor([tokenizer.pad_token_id] + tokenizer.encode(text, add_special_tokens=False), device=model.device)
        counted = 1
        for start in range(0, len(ids), context // 2):
            window = ids[start:start + context + 1]
            logits = model(window[None, :-1]).logits[0]
            losses = F.cross_entropy(logits, window[1:], reduction="none")
            total += losses[counted - start - 1:].sum().item()
            counted = start + len(window)
            if counted == len(ids):
                break
    return total / math.log(2) / size, size


@torch.no_grad()
def answers(model, tokenizer, prompts: list[str], temperature: float, seed: int, limit: int) -> list[tuple[str, bool]]:
    """(text, ended properly) for every prompt, all in one batch."""
    torch.manual_seed(seed)
    tokenizer.padding_side = "left"
    asked = [
        tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False)
        for prompt in prompts
    ]
    batch = tokenizer(asked, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
    out = model.generate(**batch, max_new_tokens=limit, do_sample=True, temperature=temperature, top_k=0, top_p=1.0)
    told = []
    for row in out[:, batch.input_ids.shape[1]:]:
        text = tokenizer.decode(row, skip_special_tokens=False)
        match = re.match(r"<\|channel\|>final<\|message\|>(.*?)(<\||$)", text, re.DOTALL)
        told.append((match[1].strip() if match else text, "<|return|>" in text))
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("bits", "stories"))
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=700, help="most new tokens in an answer")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.checkpoint)
    if arguments.what == "bits":
        result, size = bits(model, tokenizer, arguments.source)
        print(f"{result:.4f} bits a byte over {size} bytes")
        return
    prompts = [line.strip() for line in arguments.source.read_text().splitlines() if line.strip()]
    told = answers(model, tokenizer, prompts, arguments.temperature, arguments.seed, arguments.limit)
    for number, (prompt, (text, ended)) in enumerate(zip(prompts, told), 1):
        notes = f"{len(text.split())} words" + ("" if ended else ", not ended")
        print(f"## {number}. {prompt}\n\n({notes})\n\n{text}\n")


if __name__ == "__main__":
    main()
