"""Train the demo model: python train.py DATA_FOLDER OUT_FOLDER [options]

Writes OUT_FOLDER/model.pt and, every time it measures, one line to OUT_FOLDER/log.jsonl.
"""
import argparse
import json
import math
import queue
import random
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from model import Config, GptOss
from muon import make_optimizers


class Stream:
    """Endless documents from files of make_data.py, each file in a new order every time."""

    def __init__(self, paths: list[Path], seed: int):
        self.paths, self.random = paths, random.Random(seed)
        self.passes = 0
        self.documents = self._read()

    def _read(self):
        while True:
            data = np.load(self.paths[self.passes % len(self.paths)])
            ids, weights, offsets = data["ids"], data["weights"], data["offsets"]
            order = list(range(len(offsets) - 1))
            self.random.shuffle(order)
            for index in order:
                part = slice(offsets[index], offsets[index + 1])
                yield ids[part], weights[part]
            self.passes += 1

    def next(self):
        return next(self.documents)


class Rows:
    """Rows of `context + 1` tokens from both streams; every row begins at a document's start or goes on
    with a long one, and conversations are never cut off at their end."""

    def __init__(self, folder: Path, context: int, chat_share: float, end_of_text: int, seed: int):
        self.text = Stream([folder / "text.npz"], seed)
        self.chat = Stream(sorted(folder.glob("chat_*.npz")), seed)
        self.length, self.chat_share, self.end = context + 1, chat_share, end_of_text
        self.tokens = self.chat_tokens = 0
        self.waiting_chat = self.waiting_text = None

    def row(self):
        ids, weights = np.empty(self.length, np.int64), np.zeros(self.length, np.uint8)
        filled = 0
        while filled < self.length:
            want_chat = self.waiting_chat is not None or self.chat_tokens < self.chat_share * self.tokens
            if want_chat:
                document = self.waiting_chat or self.chat.next()
                self.waiting_chat = None
                if len(document[0]) + 1 > self.length - filled and len(document[0]) < self.length:
                    self.waiting_chat = document
                    want_chat = False
            if not want_chat:
                document = self.waiting_text or self.text.next()
                self.waiting_text = None
            size = min(len(document[0]), self.length - filled)
            ids[filled:filled + size], weights[filled:filled + size] = document[0][:size], document[1][:size]
            if not want_chat and size < len(document[0]):
                self.waiting_text = document[0][size:], document[1][size:]
            filled += size
            self.tokens += size
            self.chat_tokens += size if want_chat else 0
            if filled < self.length:
                ids[filled], weights[filled] = self.end, not want_chat
                filled += 1
        return ids, weights

    def batches(self, rows: int):
        """Batches made ahead in a thread."""
        ready = queue.Queue(maxsize=8)

        def work():
            while True:
                ids, weights = zip(*(self.row() for _ in range(rows)))
                ready.put((torch.from_numpy(np.stack(ids)), torch.from_numpy(np.stack(weights))))

        threading.Thread(target=work, daemon=True).start()
        while True:
            yield ready.get()


def heldout_windows(path: Path, context: int, end_of_text: int | None):
    """Windows over each document on its own; a token counts once, with at least half a window before it."""
    data = np.load(path)
    windows = []
    for begin, end in zip(data["offsets"], data["offsets"][1:]):
        ids, weights = data["ids"][begin:end].astype(np.int64), (data["weights"][begin:end] > 0).astype(np.uint8)
        if end_of_text is not None:
            ids, weights = np.concatenate(([end_of_text], ids)), np.concatenate((np.zeros(1, np.uint8), weights))
        counted = 0
        for start in range(0, len(ids), context // 2):
            window, flags = ids[start:start + context + 1], weights[start:start + context + 1].copy()
            flags[:max(counted - start, 0)] = 0
            counted = start + len(window)
            padding = context + 1 - len(window)
            windows.append((np.pad(window, (0, padding)), np.pad(flags, (0, padding))))
            if counted == len(ids):
                break
    ids, weights = zip(*windows)
    return torch.from_numpy(np.stack(ids)), torch.from_numpy(np.stack(weights))


def weighted_loss(model, ids, weights):
    """The sum of the tokens' losses, the sum of their weights, the balance loss, and the logits."""
    hidden, balance_loss = model(ids[:, :-1])
    logits = model.logits(hidden).float().flatten(0, 1)
    weights = weights[:, 1:].flatten().float()
    losses = F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
    return (losses * weights).sum(), weights.sum(), balance_loss, logits


@torch.compile(dynamic=False)
def imitation_loss(logits, teacher_probabilities, weights):
    """The mean over the learned tokens, alike: what counts more in the text's own loss is what teachers get wrong."""
    losses = -(teacher_probabilities * logits.log_softmax(-1)).sum(-1)
    learned = (weights[:, 1:].flatten() > 0).float()
    return (losses * learned).sum() / learned.sum()


@torch.no_grad()
def mean_probabilities(teachers, ids):
    """What the teachers expect on average. Each has seen the stories too often and remembers some of them by
    heart, but not the same ones."""
    total = 0
    for teacher in teachers:
        total = total + teacher.logits(teacher(ids[:, :-1])[0]).float().flatten(0, 1).softmax(-1)
    return total / len(teachers)


@torch.no_grad()
def mean_loss(model, windows, device, rows: int) -> float:
    model.eval()
    total = count = 0.0
    for ids, weights in zip(windows[0].split(rows), windows[1].split(rows)):
        missing = rows - len(ids)  # one shape only, so that nothing compiles again
        ids, weights = F.pad(ids, (0, 0, 0, missing)), F.pad(weights, (0, 0, 0, missing))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss, number, _, _ = weighted_loss(model, ids.to(device), weights.to(device))
        total, count = total + loss.item(), count + number.item()
    model.train()
    return total / count


def bits_per_byte(path: Path, loss: float) -> float:
    data = np.load(path)
    return loss * len(data["ids"]) / math.log(2) / int(data["bytes"])


def load(path: Path, device, compiled: bool) -> GptOss:
    saved = torch.load(path, map_location="cpu")
    model = GptOss(Config(**saved["config"]))
    model.load_state_dict(saved["weights"])
    return prepare(model.to(device).eval(), compiled)


def prepare(model: GptOss, compiled: bool) -> GptOss:
    if compiled:
        for layer in model.layers:
            layer.compile(dynamic=False)
    return model


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--intermediate", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--untied", action="store_true", help="a separate lm_head")
    parser.add_argument("--tokens", type=float, default=100e6, help="tokens to train on, counted with repetition")
    parser.add_argument("--rows", type=int, default=32, help="rows of `context` tokens in a batch")
    parser.add_argument("--chat-share", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=1.0)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--balance", type=float, default=0.01, help="weight of the expert balance loss")
    parser.add_argument("--quantize-from", type=float, default=0.75, help="share of the training after which experts are MXFP4")
    parser.add_argument("--start", type=Path, help="model.pt file to go on from instead of random weights")
    parser.add_argument("--teachers", type=Path, nargs="*", default=[], help="model.pt files whose predictions to learn from")
    parser.add_argument("--imitate", type=float, default=0.8, help="share of the loss that comes from the teachers")
    parser.add_argument("--measure-every", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def main():
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    compiled = device.type == "cuda" and not arguments.no_compile
    meta = json.loads((arguments.data / "meta.json").read_text())
    config = Config(
        vocab_size=meta["vocab_size"], hidden_size=arguments.hidden, intermediate_size=arguments.intermediate,
        layers=arguments.layers, heads=arguments.heads, kv_heads=arguments.kv_heads, context=arguments.context,
        tie_embeddings=not arguments.untied,
    )
    model = GptOss(config, arguments.dropout).to(device)
    if arguments.start:
        model.load_state_dict(torch.load(arguments.start, map_location=device)["weights"])
    print(f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} M parameters", flush=True)
    prepare(model, compiled)
    teachers = [load(path, device, compiled) for path in arguments.teachers]
    optimizers = make_optimizers(model, arguments.lr, arguments.weight_decay)

    rows = Rows(arguments.data, arguments.context, arguments.chat_share, meta["end_of_text"], arguments.seed)
    batches = rows.batches(arguments.rows)
    heldout_path = arguments.data / "heldout.npz"
    heldout = heldout_windows(heldout_path, arguments.context, meta["end_of_text"])
    heldout_chat = heldout_windows(arguments.data / "heldout_chat.npz", arguments.context, None)
    steps = int(arguments.tokens / (arguments.rows * arguments.context))
    warmup, quantize_at = min(200, steps // 10), int(steps * arguments.quantize_from)
    log = (arguments.out / "log.jsonl").open("w")
    started, recent = time.time(), []

    def save():
        torch.save({"config": config.to_dict(), "arguments": {k: str(v) for k, v in vars(arguments).items()},
                    "weights": model.state_dict()}, arguments.out / "model.pt")

    for step in range(steps + 1):
        if step == quantize_at:
            model.set_quantized(True)
        if step % arguments.measure_every == 0 or step == steps:
            entry = {
                "step": step, "seconds": round(time.time() - started, 1),
                "train_loss": round(torch.stack(recent).mean().item(), 4) if recent else None,
                "heldout_bits_per_byte": round(bits_per_byte(heldout_path, mean_loss(model, heldout, device, arguments.rows)), 4),
                "heldout_chat_loss": round(mean_loss(model, heldout_chat, device, arguments.rows), 4),
                "passes": [rows.text.passes, rows.chat.passes],
            }
            print(json.dumps(entry), file=log, flush=True)
            print(arguments.out.name, entry, flush=True)
            recent = []
        if step == steps:
            break
        if step and step % 2000 == 0:
            save()
        rate = arguments.lr * min((step + 1) / warmup, (steps - step) / max(steps - warmup, 1))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        ids, weights = (tensor.to(device, non_blocking=True) for tensor in next(batches))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss, number, balance_loss, logits = weighted_loss(model, ids, weights)
        loss = loss / number
        if teachers:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                expected = mean_probabilities(teachers, ids)
            imitated = imitation_loss(logits, expected, weights)
            loss = (1 - arguments.imitate) * loss + arguments.imitate * imitated
        (loss + arguments.balance * balance_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        recent.append(loss.detach())
    model.set_quantized(False)
    plain = bits_per_byte(heldout_path, mean_loss(model, heldout, device, arguments.rows))
    print(arguments.out.name, f"held-out bits per byte with unquantized experts: {plain:.4f}", flush=True)
    save()


if __name__ == "__main__":
    main()
