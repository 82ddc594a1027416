"""A program in a pseudo-terminal: keys in, what it wrote out. Standard library only."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from nibble_program import BINARY, environment

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TerminalSession:
    def __init__(self, *arguments, columns=100, program=BINARY, **more):
        self.written = ""
        self.closed = False
        self.seen = 0  # expect() looks behind what it found before
        begun, begin = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.read(begun, 1)  # the terminal has its size, and what it is before is known
            os.execve(program, [str(program), *map(str, arguments)], environment(**more))
        self.resize(columns)
        self.modes = termios.tcgetattr(self.fd)
        os.write(begin, b"x")
        os.close(begun)
        os.close(begin)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def resize(self, columns, rows=30):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, keys):
        os.write(self.fd, keys.encode())

    def pump(self, seconds):
        """Reads what comes within the time; false at the end of the output."""
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            self.closed = not data
            self.written += data.decode(errors="replace")
        return not self.closed

    def text(self):
        """All output without escape codes."""
        return ESCAPES.sub("", self.written).replace("\r\n", "\n").replace("\r", "")

    def expect(self, what, timeout=60):
        """Waits for a text after what was expected before; gives the output up to and with it."""
        end = time.monotonic() + timeout
        while True:
            at = self.text().find(what, self.seen)
            if at >= 0:
                before = self.text()[self.seen:at + len(what)]
                self.seen = at + len(what)
                return before
            assert not self.closed and time.monotonic() < end, f"no {what!r} after {self.text()[self.seen:]!r}"
            self.pump(0.05)

    def wait(self, timeout=60):
        """The exit code, or minus the signal that ended it."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                while not self.closed and self.pump(0.05) and select.select([self.fd], [], [], 0.05)[0]:
                    pass
                return os.waitstatus_to_exitcode(status)
            self.pump(0.05)
        raise AssertionError(f"still running: {self.text()[-500:]!r}")
