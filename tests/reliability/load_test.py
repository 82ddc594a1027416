"""bench/serve_load.py for seconds on a CPU, so that it works when a GPU is there for minutes."""
import json
import subprocess
import sys

import pytest

from nibble_program import BINARY, ROOT, environment
from watched_server import SANITIZED


@pytest.mark.long
@pytest.mark.skipif(SANITIZED, reason="it holds memory to what an ordinary program takes")
def test_what_a_server_counts_under_load_is_what_its_clients_saw():
    command = [sys.executable, ROOT / "bench/serve_load.py", "demo", "--program", BINARY, "--streams", "6", "--processes", "2",
               "--seconds", "4", "--warm-up", "2", "--prefix", "64", "--abort",
               "--", "--threads", "1", "--max-num-seqs", "8", "--max-model-len", "1024", "--kv-cache-tokens", "4096"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["problems"] == [] and found["clients_saw"]["compared"] > 0 and found["server_counted"]["prefix_hits"] > 0
    assert found["failed_check"]["told"] == 6
