"""Several processes that share ranks, as tests start them."""
import contextlib
import socket
import subprocess

from nibble_program import BINARY, environment

# On the emulation NCCL is a part of the program, which no gate finds as a file.
BY_NCCL = ("--all-reduce", "nccl", "--override-gates", "nccl")


def free_address():
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def places(count, address):
    """The options of each process."""
    return [("--nnodes", count, "--node-rank", index, "--dist-init-addr", address) for index in range(count)]


def start(*arguments, **more):
    return subprocess.Popen([str(part) for part in (BINARY, *arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=environment(), **more)


def ends_of(processes, timeout=120):
    """(exit code, stdout, stderr) of each, the first first. One that fails leaves the others waiting for it, so its words are told."""
    try:
        said = []
        for process in processes:
            out, err = process.communicate(timeout=timeout)
            said.append((process.returncode, out, err))
        return said
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"a process did not end; those before it: {said}") from error
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
