"""What each program in this folder is made of: functions called check_..., each of which asks the server something through
a client and asserts what comes back. `python NAME_client.py URL` prints a JSON line for each: {"check", "error"}."""
import json
import sys
import time
import traceback

STORY = "Tell me a story about a frog"


def url():
    """The server's address, without a path."""
    return sys.argv[1]


def run_checks(names):
    for name, check in list(names.items()):
        if not name.startswith("check_"):
            continue
        begin, error = time.monotonic(), None
        try:
            check()
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"check": name, "error": error, "seconds": round(time.monotonic() - begin, 2)}), flush=True)
