"""A server in a network of its own, where every packet that leaves it can be seen: none does, whatever clients ask for."""
import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from watched_server import eventually, serving, together

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
EVERY_PROTOCOL = 3  # ETH_P_ALL
TCP, UDP = 6, 17
HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"
SCHEMES = ("http://169.254.169.254/latest/meta-data", "https://example.com/a.png", "http://example.com:80/redirect?to=file:///etc/passwd",
           "file:///etc/passwd", "//example.com/a.png", "ftp://example.com/a", "gopher://192.0.2.2:25/", "unix:///run/docker.sock", "jar:http://example.com!/",
           "http://192.0.2.2/", "http://[::ffff:192.0.2.2]/", "http://0/", "http://2130706433/", "data:image/png;base64,AAAA", "\\\\192.0.2.2\\share\\a",
           "s3://bucket/key", "hf://models/a", "https://huggingface.co/a/b", "../../x", "/etc/passwd")


class Sniffer:
    """Packets that went over an interface since it was made."""

    def __init__(self, interface):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
        self.socket.bind((interface, 0))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)

    def packets(self):
        while select.select([self.socket], [], [], 0.2)[0]:
            yield self.socket.recv(1 << 16)


def beginnings(packet):
    """(protocol, port) that a packet begins to talk to: a connection's first one, or a datagram's."""
    kind, body = int.from_bytes(packet[12:14], "big"), packet[14:]
    if kind == 0x0800:
        protocol, body = body[9], body[4 * (body[0] & 15):]
    elif kind == 0x86DD:
        protocol, body = body[6], body[40:]
    else:
        return kind, None
    if protocol == TCP and body[13] & 0x12 != 0x02:  # SYN without ACK
        return None
    return protocol, int.from_bytes(body[2:4], "big") if protocol in (TCP, UDP) else None


def in_a_network_of_its_own(work):
    """work() on a thread whose network has a loopback, and another interface by which everything else would leave."""
    if not shutil.which("ip"):
        pytest.skip("there is no ip program")

    def run(_):
        if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK) != 0:
            pytest.skip(f"a network of one's own is not permitted here: {os.strerror(ctypes.get_errno())}")
        for command in ("link set lo up", "link add out type veth peer name other", "link set out arp off addrgenmode none",
                        "link set other arp off addrgenmode none", f"address add {HERE}/24 dev out", "link set out up", "link set other up",
                        f"route add default via {ELSEWHERE} dev out"):
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"ip {command}: {done.stderr.strip()}")
        return work()

    return together(1, run)[0]


def open_sockets(pid):
    """{kind: local addresses that take what comes} of the whole network that a process is in."""
    found = {}
    for kind in ("tcp", "tcp6", "udp", "udp6", "udplite", "raw", "raw6"):
        with contextlib.suppress(FileNotFoundError):
            lines = Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
            found[kind] = {line.split()[1] for line in lines if not kind.startswith("tcp") or line.split()[3] == "0A"}
    names = [line.split()[7:] for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    found["unix"] = {name[0] for name in names if name}
    return {kind: addresses for kind, addresses in found.items() if addresses}


def requests():
    """All that could be taken for a place to fetch something from."""
    for url in SCHEMES:
        for part in ({"type": "image_url", "image_url": {"url": url}}, {"type": "image_url", "image_url": url}, {"type": "input_audio", "input_audio": {"url": url}},
                     {"type": "video_url", "video_url": {"url": url}}, {"type": "file", "file": {"file_data": url}}, {"type": "text", "text": url}):
            yield "/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}
        message = {"max_tokens": 1, "messages": [{"role": "user", "content": f"![a]({url})"}]}
        for more in ({}, {"model": url}, {"user": url}, {"chat_template": url}, {"chat_template_kwargs": {"a": url}}, {"documents": [{"url": url}]},
                     {"metadata": {"webhook": url}}, {"lora_request": url}, {"kv_transfer_params": {"remote_host": "192.0.2.2", "remote_port": 80}},
                     {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": url}}}},
                     {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"$ref": url}}}]},
                     {"tools": [{"type": "mcp", "server_url": url}]}, {"guided_grammar": url}):
            yield "/v1/chat/completions", message | more
        yield "/v1/completions", {"prompt": url, "max_tokens": 1, "model": url}
        yield "/v1/completions", {"prompt": url, "max_tokens": 1, "cache_salt": url}
        yield "/tokenize", {"prompt": url}


def test_no_packet_leaves_whatever_is_asked_for_and_the_port_is_the_only_one():
    def work():
        leaving, inside = Sniffer("out"), Sniffer("lo")
        proxy = {name: f"http://{ELSEWHERE}:3128" for name in ("http_proxy", "https_proxy", "all_proxy")}
        with serving(**proxy) as server:
            asked = [server.ask("POST", path, body, Origin="http://example.com", Referer="http://example.com/", Forwarded=f"for={ELSEWHERE}",
                                **{"X-Forwarded-Host": "example.com"}).status for path, body in requests()]
            assert set(asked) <= {200, 400, 404} and asked.count(200) > 20 and asked.count(400) > 100
            # A crash and another start are no reason to call anybody either.
            old = server.engine()
            os.kill(old, signal.SIGKILL)
            eventually(lambda: server.engine() not in (None, old))
            eventually(lambda: server.ask("GET", "/health").status == 200)
            assert open_sockets(server.process.pid) == {"tcp": {f"0100007F:{server.port:04X}"}}
            server.signal()
            assert server.process.wait(timeout=60) == 0
            assert list(leaving.packets()) == []
            assert {beginnings(packet) for packet in inside.packets()} - {None} == {(TCP, server.port)}
        # What they would have seen.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"hello", ("169.254.169.254", 80))
            stranger.sendto(b"hello", ("127.0.0.1", 53))
        assert [beginnings(packet) for packet in leaving.packets()] == [(UDP, 80)]
        assert (UDP, 53) in {beginnings(packet) for packet in inside.packets()}
        return len(asked)

    print(f"{in_a_network_of_its_own(work)} requests")


@pytest.mark.parametrize("host, kind, address", [("127.0.0.1", "tcp", "0100007F"), ("localhost", "tcp", "0100007F"), (HERE, "tcp", "010200C0"), ("0.0.0.0", "tcp", "0" * 8),
                                                 ("::1", "tcp6", "0" * 24 + "01000000"), ("::", "tcp6", "0" * 32)])
def test_it_listens_where_it_is_told_to_and_nowhere_else(host, kind, address):
    def work():
        leaving = Sniffer("out")
        with serving("--host", host, "--api-key", "secret", ready=False) as server:
            port = int(server.process.stdout.readline().strip().rsplit(":", 1)[1])
            assert open_sockets(server.process.pid) == {kind: {f"{address}:{port:04X}"}}
        assert list(leaving.packets()) == []

    in_a_network_of_its_own(work)
