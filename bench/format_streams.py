#!/usr/bin/env python3
"""What a format costs: streams held to a JSON schema beside free ones, in turns, by the CPU time of the server.

    bench/format_streams.py [--binary build/release/nibble] [--model demo] [--streams 64] [--pairs 7]
                            [--schemas one|each|new] [OPTION...]

Both kinds write as many tokens; OPTIONs go to `nibble serve`. Held streams have one schema, each its own, or each a new one in each
turn. Other work on the machine hardly changes CPU time. Standard library only.
"""
import argparse
import concurrent.futures
import copy
import json
import os
import re
import statistics
import subprocess
import urllib.request
from pathlib import Path

# Long enough that no answer ends before its tokens are there.
SCHEMA = {
    "type": "array", "minItems": 60, "items": {
        "type": "object", "additionalProperties": False,
        "required": ["name", "animal", "happy", "house"],
        "properties": {
            "name": {"type": "string", "maxLength": 20}, "animal": {"enum": ["elephant", "hippopotamus", "butterfly"]},
            "happy": {"type": "boolean"}, "house": {"type": "string", "maxLength": 40}}}}


def cpu_seconds(pid):
    """Of a process and all below it."""
    ticks, children = 0, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append((int(stat.parent.name), int(fields[11]) + int(fields[12])))
        if int(stat.parent.name) == pid:
            ticks += int(fields[11]) + int(fields[12])
    waiting = [pid]
    while waiting:
        for child, spent in children.get(waiting.pop(), []):
            ticks += spent
            waiting.append(child)
    return ticks / os.sysconf("SC_CLK_TCK")


def schema_of(schemas, stream, pair):
    """An optional member's name tells them apart."""
    if schemas == "one":
        return SCHEMA
    schema = copy.deepcopy(SCHEMA)
    schema["items"]["properties"][f"extra_{stream}" if schemas == "each" else f"extra_{stream}_{pair}"] = {"type": "integer"}
    return schema


def ask(url, number, tokens, schema):
    body = {"prompt": f"Story {number}:", "max_tokens": tokens, "seed": number, "temperature": 1.0, "ignore_eos": True}
    if schema:
        del body["ignore_eos"]
        body["guided_json"] = schema
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def turn(server, url, args, pair, held):
    """CPU seconds a token."""
    schemas = [schema_of(args.schemas, i, pair) if held else None for i in range(args.streams)]
    before = cpu_seconds(server.pid)
    with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
        tokens = sum(pool.map(lambda i: ask(url, pair * args.streams + i, args.tokens, schemas[i]), range(args.streams)))
    assert tokens == args.streams * args.tokens, f"{tokens} tokens: some answer ended early"
    return (cpu_seconds(server.pid) - before) / tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/nibble")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--schemas", choices=["one", "each", "new"], default="one")
    args, options = parser.parse_known_args()
    server = subprocess.Popen([args.binary, "serve", args.model, "--port", "0", "--max-num-seqs", str(args.streams), *options],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = next(match.group() for match in (re.search(r"http://[0-9.:]+", line) for line in server.stdout) if match)
        turn(server, url, args, 0, False)
        ratios, free, held = [], 0, 0
        for pair in range(args.pairs):
            times = [turn(server, url, args, pair, kind) for kind in (False, True)]
            ratios.append(times[1] / times[0])
            free, held = free + times[0], held + times[1]
            print(f"pair {pair + 1}: free {times[0] * 1e6:,.0f} us a token, held {times[1] * 1e6:,.0f}: {ratios[-1]:.3f}", flush=True)
        print(f"median {statistics.median(ratios):.3f}, together {held / free:.3f}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
