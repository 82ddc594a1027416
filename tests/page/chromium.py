"""Debian's Chromium without a window, driven over the DevTools protocol: JSON messages on two pipes."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
# Nothing is to be asked of any host but this one, by the page or by the browser itself.
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
           "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
           "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--remote-debugging-pipe"]


class Chromium:
    """One page at a time. Events go to `handlers`, by their names, while an answer is awaited."""

    def __init__(self, folder):
        # The browser reads descriptor 3 and writes 4; the shell puts them there from numbers out of the way.
        theirs_in, self.to_browser = os.pipe()
        self.from_browser, theirs_out = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "chromium", PROGRAM, *OPTIONS, f"--user-data-dir={folder}"],
                                        pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (theirs_in, theirs_out, *high):
            os.close(fd)
        self.handlers = {}
        self.received = b""
        self.answers = {}
        self.number = 0
        self.session = None
        self.open_tab("about:blank")
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open_tab(self, url):
        """Later calls are to this tab; its target, which closes it."""
        self.session = None
        target = self.call("Target.createTarget", url=url)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        # A tab behind another one draws nothing and runs its timers once a second, or once a minute: each counts as seen.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        return target

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)

    def send(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        return self.number

    def answer(self, method, timeout=60, **parameters):
        """What the browser answers, be it an error."""
        number = self.send(method, **parameters)
        end = time.monotonic() + timeout
        while number not in self.answers:
            self.receive(end, method)
        return self.answers.pop(number)

    def call(self, method, timeout=60, **parameters):
        answer = self.answer(method, timeout, **parameters)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def receive(self, end, method):
        while b"\0" not in self.received:
            assert select.select([self.from_browser], [], [], max(0, end - time.monotonic()))[0], f"{method}: no answer"
            part = os.read(self.from_browser, 1 << 20)
            assert part, "the browser ended"
            self.received += part
        whole, _, self.received = self.received.partition(b"\0")
        message = json.loads(whole)
        if "id" in message:
            self.answers[message["id"]] = message
        elif message["method"] in self.handlers:
            self.handlers[message["method"]](message["params"])

    # --- One page ---

    def run(self, script, timeout=60):
        """The value of an expression in the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", timeout, expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition, timeout=40):
        """Until an expression in the page is true. A page that is being left or made has no value of it yet, which is not true either."""
        script = f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"
        end = time.monotonic() + timeout
        while not self.answer("Runtime.evaluate", expression=script, returnByValue=True).get("result", {}).get("result", {}).get("value"):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.01)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False, alt=False):
        """A key by its name, or a letter or sign."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
                 "Delete": 46, "F2": 113, "/": 191, "?": 191}
        more = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 and not alt else {}
        code = f"Key{key.upper()}" if key.isalpha() and len(key) == 1 else "Slash" if key in "/?" else key
        about = {"key": key, "code": code, "windowsVirtualKeyCode": codes.get(key) or ord(key.upper()), "modifiers": (8 if shift else 0) + (1 if alt else 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def click(self, selector):
        x, y = self.run(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "nearest"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def window(self, width, height, dark=False, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
