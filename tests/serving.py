"""A served model for tests: starts the built program and talks to it."""
import http.client
import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request

from nibble_program import BINARY, environment


class Server:
    def __init__(self, *arguments, model="demo", program=BINARY):
        command = [program, "serve", model, "--port", 0, *arguments]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        env=environment())
        self.url = self.process.stdout.readline().strip()  # the last thing a start prints
        assert self.url.startswith("http://"), "it did not start"
        self.address = ("127.0.0.1", int(self.url.rsplit(":", 1)[1]))

    def get(self, path, **headers):
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stream(self, path, body):
        """The objects of a stream's events, held to what server-sent events and JSON ask for, and whether [DONE] ended it."""
        data = json.dumps(body | {"stream": True}).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            try:
                text = answer.read().decode()  # strictly UTF-8
            except http.client.IncompleteRead as broken:  # a stream that failed is not ended as a whole one is
                text = broken.partial.decode()
        events = text.split("\n\n")
        assert events.pop() == "" and "\r" not in text
        events = [event for event in events if not event.startswith(":")]  # comments of a stream that waits
        assert all(event.startswith("data: ") and "\n" not in event for event in events)
        done = events[-1] == "data: [DONE]"
        return [json.loads(event[6:]) for event in (events[:-1] if done else events)], done

    def ask(self, path, body, **headers):
        """(status, answer's object, headers) over a connection of its own; the body may be bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"} | headers)
        try:
            with urllib.request.urlopen(request, timeout=240) as answer:
                return answer.status, json.loads(answer.read()), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), error.headers

    def raw(self, data, half_close=False):
        """Everything that comes back until the server closes, or for a second."""
        with socket.create_connection(self.address, timeout=30) as connection:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(1)
            received = b""
            try:
                while part := connection.recv(1 << 16):
                    received += part
            except TimeoutError:
                pass
            return received

    def post(self, path, body, content_type="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        answer = self.raw(head.encode() + data)
        status, _, body = answer.partition(b"\r\n\r\n")
        return int(status.split()[1]), json.loads(body)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)
