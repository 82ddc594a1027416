"""A stand-in for the Hugging Face hub: its API, /resolve with redirects to a second host for large files, and faults on
demand. Standard library only."""
import hashlib
import json
import re
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from nibble_program import ROOT

TLS_CERTIFICATE = ROOT / "tests/data/tls/localhost.pem"
TLS_KEY = ROOT / "tests/data/tls/localhost.key"


def git_blob(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """Files by commit; large ones (by name, or from 64 KB) are kept by git-lfs."""
    commits: dict                                  # commit: {path: bytes}
    refs: dict = field(default_factory=dict)       # "main": commit
    gated: bool = False                            # needs a token that may read it
    private: bool = False

    def is_large(self, path, content):
        return len(content) >= 1 << 16 or path.endswith(".safetensors")

    def blob(self, path, content):
        return hashlib.sha256(content).hexdigest() if self.is_large(path, content) else git_blob(content)


@dataclass
class Fault:
    """What goes wrong with requests whose path matches, and how many times."""
    pattern: str
    act: callable              # of (handler, content or None); returns True when it has answered
    times: int = 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        self.hub.connections += 1

    def do_GET(self):
        hub = self.hub
        with hub.lock:
            hub.requests.append((self.server.role, self.path, dict(self.headers)))
            hub.open += 1
            hub.most_open = max(hub.most_open, hub.open)
        try:
            if hub.delay:
                time.sleep(hub.delay)
            fault = hub.take_fault(f"{self.server.role}{self.path}")
            if fault is None or not fault.act(self):
                self.answer()
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.close_connection = True
        finally:
            with hub.lock:
                hub.open -= 1

    do_HEAD = do_GET

    def answer(self):
        (self.answer_cdn if self.server.role == "cdn" else self.answer_hub)()

    def send(self, status, body=b"", content_type="application/json", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, message):
        self.send(status, json.dumps({"error": message}).encode(), X_Error_Code=code, X_Error_Message=message)

    def send_content(self, content, **headers):
        """The content, or the part that Range asks for."""
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)?", self.headers.get("Range", ""))
        if not wanted or self.hub.no_ranges:
            return self.send(200, content, "application/octet-stream", Accept_Ranges="bytes", **headers)
        first = int(wanted[1])
        last = min(int(wanted[2] or len(content)), len(content) - 1)
        if first >= len(content):
            return self.send(416, Content_Range=f"bytes */{len(content)}")
        self.send(206, content[first:last + 1], "application/octet-stream",
                  Content_Range=f"bytes {first}-{last}/{len(content)}", **headers)

    def answer_cdn(self):
        parts = urllib.parse.urlsplit(self.path)
        content = self.hub.contents.get(parts.path.rpartition("/")[2])
        if content is None:
            return self.send(404)
        if int(parts.query.removeprefix("signature=")) < self.hub.oldest_signature:
            return self.send(403)
        self.send_content(content)

    def answer_hub(self):
        hub = self.hub
        path = urllib.parse.urlsplit(self.path).path.removeprefix(hub.prefix)
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        content = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not api and not content:
            return self.send(404)
        name = (api or content)[1]
        repository = hub.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in hub.tokens:
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        if repository is None or (repository.private and token != "reader"):
            return self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        revision = urllib.parse.unquote((api[3] if api else content[2]))
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repository.commits[commit]
        if api and api[2] == "revision":
            return self.send(200, json.dumps({
                "_id": "0", "id": name, "modelId": name, "sha": commit, "private": repository.private,
                "gated": repository.gated, "disabled": False, "downloads": 0, "likes": 0, "tags": [],
                "siblings": [{"rfilename": file} for file in files]}).encode())
        if repository.gated and token != "reader":
            return self.refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted.")
        if api:
            return self.answer_tree(repository, files, query)
        self.answer_content(repository, commit, files, urllib.parse.unquote(content[3]))

    def answer_tree(self, repository, files, query):
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "original"}]
        for path, content in files.items():
            entry = {"type": "file", "oid": git_blob(content), "size": len(content), "path": path}
            if repository.is_large(path, content):
                entry["lfs"] = {"oid": repository.blob(path, content), "size": len(content), "pointerSize": 134}
                entry["oid"] = "1" * 40
            entries.append(entry)
        entries = self.hub.change_tree(entries)
        begin = int(query.get("cursor", ["0"])[0])
        end = begin + self.hub.page_entries
        headers = {}
        if end < len(entries):
            path = urllib.parse.urlsplit(self.path).path
            headers["Link"] = f'<{self.hub.url_of_server}{path}?recursive=true&cursor={end}>; rel="next"'
        self.send(200, json.dumps(entries[begin:end]).encode(), **headers)

    def answer_content(self, repository, commit, files, path):
        hub = self.hub
        if path not in files:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        content = hub.change_content(path, files[path])
        blob = repository.blob(path, files[path])
        known = {"X_Repo_Commit": commit, "ETag": f'"{blob}"'}
        if not repository.is_large(path, files[path]):
            return self.send_content(content, **known)
        hub.contents[blob] = content
        hub.signature += 1
        location = hub.redirect or f"{hub.cdn_url}/{blob}?signature={hub.signature}"
        self.send(302, b"Found", "text/plain", Location=location, X_Linked_Etag=f'"{blob}"',
                  X_Linked_Size=len(files[path]), **known)


class Hub:
    """Two servers on ports that the system picks: the hub, and the host of its large files."""

    def __init__(self, tls=False, prefix="", address="127.0.0.1"):
        self.lock = threading.Lock()
        self.repositories, self.contents, self.faults, self.requests = {}, {}, [], []
        self.tokens = {"reader", "stranger"}
        self.prefix, self.page_entries, self.no_ranges, self.delay = prefix, 1000, False, 0
        self.signature = self.oldest_signature = self.connections = self.open = self.most_open = 0
        self.redirect = None
        self.change_tree = lambda entries: entries
        self.change_content = lambda path, content: content
        self.servers = []
        scheme = "https" if tls else "http"
        self.address = address
        host = "localhost" if tls and address == "127.0.0.1" else address
        self.url_of_server = f"{scheme}://{host}:{self.serve('hub', tls)}"
        self.url = self.url_of_server + prefix
        self.cdn_url = f"{scheme}://{host}:{self.serve('cdn', tls)}"

    def serve(self, role, tls):
        handler = type("BoundHandler", (Handler,), {"hub": self})
        server = ThreadingHTTPServer((self.address, 0), handler)
        server.role, server.daemon_threads = role, True
        server.handle_error = lambda *_: None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS_CERTIFICATE, TLS_KEY)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.servers.append(server)
        return server.server_address[1]

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def take_fault(self, path):
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, path):
                    fault.times -= 1
                    return fault
        return None

    def fail(self, pattern, act, times=1):
        self.faults.append(Fault(pattern, act, times))

    def asked(self, role, pattern=""):
        return [(path, headers) for r, path, headers in self.requests if r == role and re.search(pattern, path)]


# Faults

def status(code, **headers):
    def act(handler):
        handler.send(code, b'{"error":"x"}', **headers)
        return True
    return act


def dies_after(count):
    """The true head, the first bytes of the body, then the connection is gone."""
    def act(handler):
        whole = handler.wfile

        class Cut:
            left = None

            def write(self, data):
                if self.left is None:  # the head
                    self.left = count
                    return whole.write(data)
                whole.write(data[:self.left])
                self.left -= len(data[:self.left])
                if self.left == 0:
                    handler.close_connection = True
                    raise ConnectionResetError
                return len(data)

            def __getattr__(self, name):
                return getattr(whole, name)
        handler.wfile = Cut()
        try:
            handler.answer()
        finally:
            handler.wfile = whole
        return True
    return act


def raw(data, then=0):
    """These bytes in place of an answer, and after a time the end of the connection."""
    def act(handler):
        handler.wfile.write(data)
        handler.wfile.flush()
        time.sleep(then)
        handler.close_connection = True
        return True
    return act


def drips(data, interval, seconds):
    def act(handler):
        end = time.monotonic() + seconds
        at = 0
        while time.monotonic() < end:
            handler.wfile.write(data[at:at + 1] or b"x")
            handler.wfile.flush()
            at += 1
            time.sleep(interval)
        handler.close_connection = True
        return True
    return act


class ConnectProxy:
    """A proxy that knows CONNECT and plain requests; it notes the targets, and may ask for a password."""

    def __init__(self, password=None):
        import socket
        self.targets, self.authorizations, self.password = [], [], password
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        import socket
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = client.recv(1)
            if not byte:
                return client.close()
            head += byte
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        self.targets.append((method, target))
        given = re.search(rb"(?im)^proxy-authorization: (.*?)\r$", head)
        self.authorizations.append(given and given[1].decode())
        if self.password and self.authorizations[-1] != self.password:
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return client.close()
        if method == "CONNECT":
            host, port = target.rsplit(":", 1)
            server = socket.create_connection((host, int(port)))
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            parts = urllib.parse.urlsplit(target)
            server = socket.create_connection((parts.hostname, parts.port))
            server.sendall(head.replace(target.encode(), (parts.path + ("?" + parts.query if parts.query else "")).encode(), 1)
                           .replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        other = threading.Thread(target=self.copy, args=(server, client), daemon=True)
        other.start()
        self.copy(client, server)
        other.join()
        client.close()
        server.close()

    @staticmethod
    def copy(source, destination):
        import socket
        try:
            while data := source.recv(1 << 16):
                destination.sendall(data)
            destination.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.socket.close()
