"""A server to be mistreated: started, watched, and held to its word that nothing a client sends takes it down."""
import contextlib
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from nibble_program import BINARY, environment

# Under a sanitizer a process holds shadow memory and freed blocks.
SANITIZED = any(name in str(BINARY) for name in ("/fuzz/", "/tsan/"))
PATIENCE = 600 if SANITIZED else 60  # seconds without a byte
CONTROL = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0.8, "seed": 7, "logprobs": 1}


def eventually(condition, seconds=30, what="it"):
    """The first true value of condition(), asked again and again."""
    end = time.monotonic() + seconds * (10 if SANITIZED else 1)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not come true in {seconds} s"
        time.sleep(0.02)


def until_served(server):
    """Health, whatever became of the engine meanwhile."""
    def answers():
        with contextlib.suppress(ConnectionResetError, AssertionError):
            return server.ask("GET", "/health").status == 200
    eventually(answers, what="health")


def request_bytes(method, path, body=None, **headers):
    fields = {"Host": "localhost"} | {name.replace("_", "-"): value for name, value in headers.items()}
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    if body is not None:
        fields = {"Content-Type": "application/json", "Content-Length": len(data)} | fields
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data


class Answer:
    def __init__(self, data):
        head, _, self.body = data.partition(b"\r\n\r\n")
        while head.startswith(b"HTTP/1.1 100"):
            head, _, self.body = self.body.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        assert lines[0].startswith("HTTP/1.1 "), data[:200]
        self.status = int(lines[0].split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        if self.headers.get("transfer-encoding") == "chunked":
            self.body, self.whole = unchunked(self.body)
        else:
            self.whole = len(self.body) == int(self.headers.get("content-length", len(self.body)))

    def json(self):
        return json.loads(self.body)

    def events(self):
        """What a stream said, [DONE] as None."""
        events = []
        for event in self.body.split(b"\n\n"):
            if event and not event.startswith(b":"):
                assert event.startswith(b"data: "), event
                text = event[6:].decode()  # strictly UTF-8
                events.append(None if text == "[DONE]" else json.loads(text))
        return events


def unchunked(data):
    """(body, whether its end came) of a chunked body."""
    body = b""
    while True:
        size, found, data = data.partition(b"\r\n")
        if not found or not size:
            return body, False
        size = int(size, 16)
        if size == 0:
            return body, True
        body, data = body + data[:size], data[size + 2:]


def listening_ports(pids):
    """Of TCP sockets that any of these processes listens on; and the peers of those that are connected."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
                inodes |= {found[1]} if found else set()
    listening, peers = set(), []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes and fields[3] == "0A":
                    listening.add((fields[1].split(":")[0], int(fields[1].split(":")[1], 16)))
                elif fields[9] in inodes:
                    peers.append((int(fields[1].split(":")[1], 16), fields[2]))
    return listening, peers


class Server:
    def __init__(self, *arguments, model="demo", program=BINARY, descriptors=None, stack=None, ready=True, **variables):
        self.errors = tempfile.TemporaryFile("w+")

        def limit():
            for kind, most in ((resource.RLIMIT_NOFILE, descriptors), (resource.RLIMIT_STACK, stack)):  # a stack's is every thread's
                if most:
                    resource.setrlimit(kind, (most, most))

        command = [program, "serve", model, "--port", 0, "--threads", 1, *arguments]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        env=environment(**{name: str(value) for name, value in variables.items()}), preexec_fn=limit)
        self.port = None
        if ready:
            try:
                url = self.process.stdout.readline().strip()
                assert url.startswith("http"), self.log()
                self.port = int(url.rsplit(":", 1)[1])
                self.before = self.control()
            except BaseException:  # nobody else knows of the process yet
                self.process.kill()
                self.process.wait()
                raise

    def log(self):
        self.errors.flush()
        return Path(f"/proc/self/fd/{self.errors.fileno()}").read_text()

    def children(self):
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in tasks.split()]

    def engine(self):
        """The process that holds the model."""
        for pid in self.children():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                if Path(f"/proc/{pid}/comm").read_text().strip() == "nibble-engine":
                    return pid
        return None

    def connect(self, timeout=PATIENCE):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def raw(self, data, half_close=False, timeout=PATIENCE):
        """Everything that comes back until the server closes."""
        with self.connect(timeout) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused half way
                connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    def ask(self, method, path, body=None, **headers):
        return Answer(self.raw(request_bytes(method, path, body, **{"Connection": "close"} | headers)))

    def control(self):
        answer = self.ask("POST", "/v1/completions", CONTROL)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json()["choices"]

    def metrics(self):
        """{(name, label values but model and engine): value}, as Prometheus's own parser reads them."""
        answer = self.ask("GET", "/metrics")
        assert answer.status == 200, answer.body
        found = {}
        for family in text_string_to_metric_families(answer.body.decode()):
            for sample in family.samples:
                labels = tuple(value for name, value in sorted(sample.labels.items()) if name not in ("model_name", "engine"))
                found[(sample.name, *labels)] = sample.value
        return found

    def aborts(self):
        return self.metrics()["vllm:request_success_total", "abort"]

    def idle(self):
        metrics = self.metrics()
        return (metrics["vllm:num_requests_running",] == 0 and metrics["vllm:num_requests_waiting",] == 0
                and metrics["vllm:kv_cache_usage_perc",] == 0)

    @contextlib.contextmanager
    def survives(self, growth_mib=16, quickly=10):
        """The common oracle: the same process answers a control request bit for bit as before, its memory did not grow, and
        nothing of what was asked stays behind."""
        self.control()
        engine, resident = self.engine(), self.metrics()["process_resident_memory_bytes",]
        yield
        assert self.process.poll() is None, self.log()
        eventually(self.idle, quickly, "idle, with no page in use,")
        assert self.control() == self.before
        assert self.engine() == engine, "the engine's process is another one"
        if not SANITIZED:
            grown = (self.metrics()["process_resident_memory_bytes",] - resident) / (1 << 20)
            assert grown < growth_mib, f"grew by {grown:.1f} MiB"

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def stop(self):
        """Its exit code."""
        if self.process.poll() is None:
            self.signal()
        code = self.process.wait(timeout=90)
        self.process.stdout.close()
        assert "Sanitizer" not in self.log(), self.log()
        self.errors.close()
        return code


@contextlib.contextmanager
def serving(*arguments, **more):
    server = Server(*arguments, **more)
    try:
        yield server
    except BaseException:
        server.process.kill()
        server.process.wait()
        raise
    assert server.stop() == 0


def read_all(connection):
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            data += part
    return data


def reset(connection):
    """Closes with a reset, as a process that dies with unread data does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def together(count, work):
    """work(i) on as many threads; the results in order. The first failure is raised."""
    results, failures = [None] * count, []

    def run(i):
        try:
            results[i] = work(i)
        except BaseException as failure:  # noqa: BLE001 - raised below, on the test's thread
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def counts(few, many):
    """A parameter with the count for `make test` and the one for the extended run."""
    import pytest
    return [few, pytest.param(many, marks=pytest.mark.extended)]
