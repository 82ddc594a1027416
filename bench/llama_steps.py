#!/usr/bin/env python3
"""Times llama.cpp step by step, through llama-cpp-python's ctypes layer over a library that was built for this machine.

    LLAMA_CPP_LIB_PATH=FOLDER_OF_LIBLLAMA PYTHONPATH=LLAMA_CPP_PYTHON python3 llama_steps.py MODEL.gguf ITEM [ITEM ...]

One JSON line an item. Items: load, decode:DEPTH, prefill:TOKENS, parallel:SEQUENCES (128 tokens deep). Figures are
medians of the clean steps: those in which this process had its cores for at least 97 % of the wall time.
"""
import argparse
import ctypes
import json
import os
import resource
import statistics
import sys
import time

import llama_cpp
import numpy as np

CLEAN_SHARE = 0.97
MICRO_BATCH = 512


class Peer:
    def __init__(self, path: str, threads: int, mapped: bool):
        callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self.silence = callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.use_mmap = mapped
        begin = time.perf_counter()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        if not self.model:
            sys.exit(f"error: llama.cpp cannot load {path}")
        self.load_s = time.perf_counter() - begin
        self.threads = threads
        self.ids = np.random.Generator(np.random.PCG64(3))
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)
        self.context = None

    def start(self, tokens: int, sequences: int = 1):
        if self.context:
            llama_cpp.llama_free(self.context)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = tokens * sequences, sequences
        parameters.n_batch, parameters.n_ubatch = 2048, MICRO_BATCH
        parameters.n_threads = parameters.n_threads_batch = self.threads
        parameters.swa_full = False
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def step(self, places) -> tuple[float, float]:
        """places: (position, sequence, wants logits). Returns the wall and the CPU seconds."""
        self.batch.n_tokens = len(places)
        for i, (position, sequence, wanted) in enumerate(places):
            self.batch.token[i] = int(self.ids.integers(0, self.vocabulary - 1200))
            self.batch.pos[i], self.batch.n_seq_id[i], self.batch.seq_id[i][0] = position, 1, sequence
            self.batch.logits[i] = wanted
        cpu, wall = time.process_time(), time.perf_counter()
        if llama_cpp.llama_decode(self.context, self.batch):
            sys.exit("error: llama_decode failed")
        return time.perf_counter() - wall, time.process_time() - cpu

    def fill(self, depth: int, sequences: int = 1):
        for sequence in range(sequences):
            for begin in range(0, depth, MICRO_BATCH):
                self.step([(p, sequence, 0) for p in range(begin, min(depth, begin + MICRO_BATCH))])

    def collect(self, item: str, tokens: int, one_step, wanted: int, budget: float):
        one_step()  # the thread team and the buffers
        steps, clean, end = [], [], time.time() + budget
        while len(clean) < wanted and time.time() < end or not steps:
            wall, cpu = one_step()
            steps.append(wall)
            if cpu >= CLEAN_SHARE * self.threads * wall:
                clean.append(wall)
        median = statistics.median(clean or steps)
        report(item=item, tokens_per_s=tokens / median, step_s=median, clean_steps=len(clean), steps=len(steps))


def report(**fields):
    print(json.dumps(fields), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("items", nargs="+")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=20, help="clean steps wanted of an item")
    parser.add_argument("--no-mmap", action="store_true", help="read the file instead of mapping it; the library maps by default")
    parser.add_argument("--budget", type=float, default=40, help="seconds an item may take")
    arguments = parser.parse_args()
    peer = Peer(arguments.model, arguments.threads, not arguments.no_mmap)
    for item in arguments.items:
        kind, _, size = item.partition(":")
        size = int(size or 0)
        if kind == "load":
            peer.start(64)
            seconds, _ = peer.step([(0, 0, 1)])
            report(item=item, load_s=peer.load_s, first_token_s=peer.load_s + seconds)
        elif kind == "decode":
            peer.start(size + 1024)
            peer.fill(size)
            position = iter(range(size, size + 1024))
            peer.collect(item, 1, lambda: peer.step([(next(position), 0, 1)]), arguments.steps, arguments.budget)
        elif kind == "prefill":
            peer.start(size)

            def prompt():
                peer.clear()
                return peer.step([(p, 0, int(p == size - 1)) for p in range(size)])

            peer.collect(item, size, prompt, max(2, arguments.steps // 5), arguments.budget * 2)
        elif kind == "parallel":
            peer.start(1152, size)
            peer.fill(128, size)
            position = iter(range(128, 1152))

            def together():
                at = next(position)
                return peer.step([(at, sequence, 1) for sequence in range(size)])

            peer.collect(item, size, together, arguments.steps, arguments.budget)
        else:
            sys.exit(f"error: {item}: no such item; give load, decode:DEPTH, prefill:TOKENS or parallel:SEQUENCES")
    report(item="end", peak_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()
