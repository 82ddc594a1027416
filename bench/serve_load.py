#!/usr/bin/env python3
"""nibble serve under load, held to its word: many streams, clients that go, shared prompts, for minutes. Standard library only.

    bench/serve_load.py MODEL [--program build/release/nibble] [--streams 128] [--seconds 180] [-- OPTIONS OF SERVE]

It starts the server, asks for a few answers alone, and then keeps so many streams busy: requests that were asked alone before
and must have the same bits now, prompts that nobody else has, several choices at once, answers that are not streamed, clients
that close in the middle of a stream or before its beginning. Afterwards, what the server counted must be what the clients saw,
nothing may run or hold a page, memory of the host and of the GPU must be what it was after the warm-up, the log may hold
nothing above a warning, and the engine must be the process that it was. With --abort, at last a thread of the engine's
fails as by a broken invariant while all streams run: how soon that is known, the process is gone and another one serves, how
many of the streams were told why they end, and whether the next engine gives the same bits.

The last line is a JSON object of what was found; the exit code is 0 if all was as it should be.
"""
import argparse
import ctypes
import http.client
import json
import multiprocessing
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "build/release/nibble"
ANSWER = 48  # tokens of an answer that is compared


class Client:
    """One request at a time to a port of this machine, each on a connection of its own."""

    def __init__(self, port):
        self.port = port
        self.cached = 0  # of the last answer's prompt

    def open(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.connect()
        socket = connection.sock
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", "Connection": "close"})
        return socket, connection.getresponse()

    def get(self, path):
        socket, response = self.open("GET", path)
        with socket, response:
            return response.status, response.read().decode()

    def events(self, response):
        """The objects of a stream; None for its [DONE]."""
        for line in response:
            if line.startswith(b"data: "):
                yield None if line == b"data: [DONE]\n" else json.loads(line[6:])

    def answers(self, body):
        """By choice: (text, ids, log-probabilities) of an answer that came whole, streamed or not."""
        socket, response = self.open("POST", "/v1/completions", body)
        with socket, response:
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {response.read()[:300]}")
            parts = list(self.events(response)) if body.get("stream") else [json.loads(response.read()), None]
        if parts[-1] is not None:
            raise RuntimeError(f"a stream broke off: {parts[-1:]}")
        found = {}
        for part in parts[:-1]:
            if "error" in part:
                raise RuntimeError(str(part["error"]))
            if part.get("usage"):
                self.cached = part["usage"]["prompt_tokens_details"]["cached_tokens"]
            for choice in part["choices"]:
                text, ids, logprobs = found.setdefault(choice["index"], ["", [], []])
                found[choice["index"]][0] = text + choice["text"]
                ids += choice.get("token_ids") or []
                logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
        return [found[index] for index in sorted(found)]

    def metrics(self):
        """{name{labels but the model's}: value}"""
        found = {}
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            found[re.sub(r'(model_name|engine)="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")] = float(value)
        return found


def compared_requests(ids, prefix):
    """Every second one begins as the others do; greedy and drawn by turns."""
    source = random.Random(1)
    shared = source.choices(range(ids), k=prefix)
    for number in range(16):
        own = source.choices(range(ids), k=source.randrange(8, 200))
        yield {"prompt": (shared if number % 2 == 0 else []) + own, "max_tokens": ANSWER, "ignore_eos": True, "logprobs": 1,
               "return_token_ids": True, **({"temperature": 0} if number % 4 < 2 else {"temperature": 0.9, "top_p": 0.95, "seed": number})}


def difference(number, body, streamed, cached, expected, found):
    """Where an answer parted from what it was alone."""
    first = [next((i for i, (one, other) in enumerate(zip(a, b)) if one != other), None) for a, b in zip(expected, found)]
    at = first[2]
    return {"request": number, "prompt": len(body["prompt"]), "cached": cached, "temperature": body["temperature"], "streamed": streamed,
            "first_other": dict(zip(("character", "id", "logprob"), first)),
            "logprobs": None if at is None else [expected[2][at], found[2][at]]}


class Load:
    """What one stream asks, one request after the other, and what it saw."""

    def __init__(self, port, seed, ids, alone):
        self.client, self.random, self.ids, self.alone = Client(port), random.Random(seed), ids, alone
        self.saw = dict.fromkeys(("whole", "compared", "other_bits", "aborted", "hung_up", "tokens", "failures"), 0)
        self.first_failure = ""
        self.differences = []

    def run(self, until):
        while time.monotonic() < until:
            try:
                self.random.choices([self.compare, self.abort, self.hang_up, self.several], [10, 5, 1, 4])[0]()
            except Exception as failure:  # noqa: BLE001 - counted and told
                self.saw["failures"] += 1
                self.first_failure = self.first_failure or repr(failure)

    def compare(self):
        number = self.random.randrange(len(self.alone))
        body, expected = self.alone[number]
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if self.random.random() < 0.8 else {}
        found = self.client.answers(body | streamed)
        self.saw["compared"] += 1
        self.saw["whole"] += 1
        self.saw["tokens"] += len(found[0][1])
        if found != expected:
            self.saw["other_bits"] += 1
            self.differences.append(difference(number, body, streamed != {}, self.client.cached, expected[0], found[0]))

    def prompt(self):
        return self.random.choices(range(self.ids), k=self.random.randrange(1, 300))

    def several(self):
        choices = self.random.randrange(1, 4)
        found = self.client.answers({"prompt": self.prompt(), "max_tokens": self.random.randrange(1, 100), "ignore_eos": True, "n": choices,
                                     "return_token_ids": True})
        self.saw["whole"] += choices
        self.saw["tokens"] += sum(len(ids) for _, ids, _ in found)

    def abort(self):
        body = self.random.choice(self.alone)[0] | {"max_tokens": 400, "stream": True}
        socket, response = self.client.open("POST", "/v1/completions", body)
        with socket, response:
            for number, _ in enumerate(self.client.events(response)):
                if number >= self.random.randrange(20):
                    break
        self.saw["aborted"] += 1

    def hang_up(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.client.port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": self.prompt(), "max_tokens": 400, "ignore_eos": True}),
                           {"Content-Type": "application/json"})
        time.sleep(self.random.random() * 0.1)
        connection.close()
        self.saw["hung_up"] += 1


def work(port, seeds, ids, alone, until, results):
    """A process's streams, a thread each: a Python alone could not read them all."""
    loads = [Load(port, seed, ids, alone) for seed in seeds]
    threads = [threading.Thread(target=load.run, args=(until,)) for load in loads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(([load.saw for load in loads], next((load.first_failure for load in loads if load.first_failure), ""),
                 [each for load in loads for each in load.differences]))


class Server:
    def __init__(self, program, model, options):
        self.log = tempfile.TemporaryFile("w+")
        command = [program, "serve", model, "--port", "0", "--log-level", "warning", *options]
        begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        url = self.process.stdout.readline().strip()
        if not url.startswith("http"):
            raise SystemExit("it did not start:\n" + self.logged())
        self.start_seconds = time.monotonic() - begin
        self.client = Client(int(url.rsplit(":", 1)[1]))

    def logged(self):
        self.log.flush()
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text()

    def engine(self):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next((int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "nibble-engine"), None)

    def memory(self):
        """MiB of the host that the engine holds, open descriptors, and MiB of the GPU that anybody does."""
        metrics = self.client.metrics()
        found = {"host_mib": round(metrics["process_resident_memory_bytes"] / 2**20, 1), "descriptors": int(metrics["process_open_fds"])}
        if shutil.which("nvidia-smi"):
            asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
            if asked.returncode == 0:
                found["gpu_mib"] = int(asked.stdout.split()[0])
        return found

    def rests(self, seconds=20):
        """Its metrics once nothing runs, waits or holds a page; the last ones if that does not come."""
        until = time.monotonic() + seconds
        while True:
            metrics = self.client.metrics()
            busy = sum(metrics[name] for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"))
            if busy == 0 or time.monotonic() > until:
                return metrics
            time.sleep(0.1)


def drive(server, args, ids, alone, seconds, seed):
    """The streams' sum of what they saw."""
    results, share = multiprocessing.Queue(), -(-args.streams // args.processes)
    until = time.monotonic() + seconds
    seeds = list(range(seed, seed + args.streams))
    workers = [multiprocessing.Process(target=work, args=(server.client.port, seeds[at:at + share], ids, alone, until, results))
               for at in range(0, args.streams, share)]
    for worker in workers:
        worker.start()
    samples = []
    while time.monotonic() < until - 1:
        time.sleep(min(10, max(0.1, until - 1 - time.monotonic())))
        metrics = server.client.metrics()
        samples.append(metrics["vllm:num_requests_running"])
        print(f"  {seconds - until + time.monotonic():5.0f} s: {metrics['vllm:num_requests_running']:.0f} running, "
              f"{metrics['vllm:num_requests_waiting']:.0f} waiting, pages {metrics['vllm:kv_cache_usage_perc']:.0%}, "
              f"{metrics['vllm:generation_tokens_total']:.0f} tokens, {server.memory()}", flush=True)
    parts = [results.get(timeout=180) for _ in workers]
    for worker in workers:
        worker.join()
    saw = {}
    for load in (load for loads, _, _ in parts for load in loads):
        for name, count in load.items():
            saw[name] = saw.get(name, 0) + count
    saw["first_failure"] = next((failure for _, failure, _ in parts if failure), "")
    saw["differences"] = [each for _, _, differences in parts for each in differences][:20]
    return saw, samples


def counted(metrics, before):
    """What the server has counted since."""
    def since(name):
        return metrics.get(name, 0) - before.get(name, 0)
    ends = {reason: int(since(f'vllm:request_success_total{{finished_reason="{reason}"}}')) for reason in ("stop", "length", "abort", "error")}
    return ends | {"tokens": int(since("vllm:generation_tokens_total")), "prefix_hits": int(since("vllm:prefix_cache_hits_total")),
                   "prefix_queries": int(since("vllm:prefix_cache_queries_total")), "preemptions": int(since("vllm:num_preemptions_total")),
                   "evicted_pages": int(since("nibble:evicted_pages_total")), "steps": int(since("nibble:steps_total")),
                   "left": [metrics[f"vllm:{name}"] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]}


def problems_of(saw, count, warm, end, server, engine, args):
    ended = sum(count[reason] for reason in ("stop", "length", "abort", "error"))
    least = saw["whole"] + saw["aborted"]
    return [text for wrong, text in (
        (saw["failures"] > 0, f"requests failed: {saw['first_failure']}"),
        (saw["compared"] == 0 or saw["aborted"] == 0, "the load compared or aborted nothing"),
        (saw["other_bits"] > 0, "answers under load have other bits than alone"),
        (not least <= ended <= least + saw["hung_up"], f"{ended} requests ended and clients saw {least} and hung up {saw['hung_up']} times"),
        (count["stop"] + count["length"] < saw["whole"], "fewer answers counted than came"),
        (count["error"] > 0, "requests ended in errors"),
        (count["abort"] == 0, "no abort was counted"),
        (count["tokens"] < saw["tokens"], "fewer tokens counted than came"),
        (count["prefix_hits"] == 0, "no prompt was found in the prefix cache"),
        (count["left"] != [0, 0, 0], f"running, waiting and pages in use are not 0: {count['left']}"),
        (end["host_mib"] - warm["host_mib"] > args.host_mib, "the engine's process has grown"),
        (end["descriptors"] > warm["descriptors"] + 2, "descriptors stay open"),
        (end.get("gpu_mib", 0) > warm.get("gpu_mib", 0), "memory of the GPU has gone"),
        (re.search(r"\d error |broken invariant", server.logged()) is not None, "the log has errors: " + server.logged()[-2000:]),
        (server.engine() != engine, "the engine is another process"),
    ) if wrong]


def end_by_a_failed_check(server, alone, streams):
    """Under so many streams; seconds until each of these, and how many of the streams were told why they end."""
    told, begun = [], threading.Barrier(streams + 1)

    def listen(body):
        socket, response = server.client.open("POST", "/v1/completions", body | {"stream": True, "ignore_eos": True, "return_token_ids": True})
        last, waited = None, False
        with socket, response:
            try:
                for last in server.client.events(response):
                    if not waited:
                        begun.wait(60)
                        waited = True
            except (OSError, http.client.HTTPException):
                pass
        told.append((last or {}).get("error", {}).get("code") == "engine_stopped")

    # Short contexts have no room for endless answers: as long as the model allows.
    length = json.loads(server.client.get("/v1/models")[1])["data"][0]["max_model_len"]
    threads = [threading.Thread(target=listen, args=({"prompt": body["prompt"][-8:], "max_tokens": length - 8, "temperature": 0.9, "seed": i},))
               for i, (body, _) in ((i, alone[i % len(alone)]) for i in range(streams))]
    for thread in threads:
        thread.start()
    begun.wait(60)
    engine = server.engine()
    steps = next(task for task in Path(f"/proc/{engine}/task").iterdir() if (task / "comm").read_text() == "engine-steps\n")
    begin, found = time.monotonic(), {}

    def until(what, condition):
        while not condition():
            time.sleep(0.005)
            if time.monotonic() - begin > 120:
                raise SystemExit(f"{what} did not come")
        found[what] = round(time.monotonic() - begin, 2)

    def healthy():
        try:
            return server.client.get("/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    tgkill = 234  # on x86-64: abort() in a thread of another process
    ctypes.CDLL(None).syscall(tgkill, engine, int(steps.name), signal.SIGABRT)
    until("unhealthy", lambda: not healthy())
    until("gone", lambda: not Path(f"/proc/{engine}").exists())
    until("serves_again", healthy)
    for thread in threads:
        thread.join()
    body, expected = alone[0]
    return found | {"streams": streams, "told": sum(told), "same_bits": server.client.answers(body | {"stream": True}) == expected}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--program", default=PROGRAM)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--processes", type=int, default=8, help="of clients")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--warm-up", type=float, default=15, help="seconds of the same load before memory is looked at")
    parser.add_argument("--ids", type=int, default=5000, help="prompts have ids below that")
    parser.add_argument("--prefix", type=int, default=512, help="ids that every second compared prompt begins with")
    parser.add_argument("--host-mib", type=float, default=32, help="that the engine's process may grow")
    parser.add_argument("--abort", action="store_true", help="at last, end the engine by a failed check")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:end])

    server = Server(str(args.program), args.model, sys.argv[end + 1:])
    try:
        engine = server.engine()
        print(f"serves after {server.start_seconds:.1f} s", flush=True)
        alone = [(body, server.client.answers(body | {"stream": True})) for body in compared_requests(args.ids, args.prefix)]
        drive(server, args, args.ids, alone, args.warm_up, 10_000)
        before, warm = server.rests(), server.memory()
        saw, running = drive(server, args, args.ids, alone, args.seconds, 1)
        metrics, end = server.rests(), server.memory()
        count = counted(metrics, before)
        problems = problems_of(saw, count, warm, end, server, engine, args)
        record = {"streams": args.streams, "seconds": args.seconds, "start_seconds": round(server.start_seconds, 2), "clients_saw": saw,
                  "server_counted": count, "running_sampled": running, "after_warm_up": warm, "at_the_end": end}
        if args.abort:
            record["failed_check"] = failed = end_by_a_failed_check(server, alone, args.streams)
            if failed["unhealthy"] > 1 or failed["gone"] > 5 or failed["told"] != args.streams or not failed["same_bits"]:
                problems.append("a failed check was not told in time, or not to all, or the next engine has other bits")
        server.process.send_signal(signal.SIGTERM)
        if server.process.wait(timeout=60) != 0:
            problems.append("it did not end well: " + server.logged()[-2000:])
    finally:
        server.process.kill()
    print(json.dumps(record | {"problems": problems}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
