"""A headless Chromium that opens pages: finds it, and speaks its DevTools protocol over a pipe. Needs no other package."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ["chromium", "google-chrome", "google-chrome-stable", "chromium-browser"]
TIMEOUT_S = 30


def find():
    """Returns the path of Chromium or Chrome: one in PATH, or one that Playwright has installed. None if there is none."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    patterns = ["chromium-*/chrome-linux*/chrome", "chromium_headless_shell-*/chrome-*/*headless?shell"]
    found = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return str(found[-1]) if found else None


def install():
    """Installs Debian's Chromium, and returns its path; None if that fails."""
    if not shutil.which("apt-get"):
        return None
    print("installing chromium", flush=True)
    admin = [] if os.geteuid() == 0 else ["sudo", "-n"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in ["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]:
        done = subprocess.run([*admin, "apt-get", *words], env=env, stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            return None
    return shutil.which("chromium")


class Browser:
    """A running browser. Use it with `with`."""

    def __init__(self, path):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = ["--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars",
                 "--disable-background-networking", "--disable-component-update", f"--user-data-dir={self.profile.name}"]
        if os.geteuid() == 0:
            # Its sandbox refuses to run as root.
            flags.append("--no-sandbox")
        theirs_in, self.to = os.pipe()
        self.of, theirs_out = os.pipe()

        def connect():
            # The browser reads from 3 and writes to 4. Copies first, since the pipes may have these numbers themselves.
            ends = [os.dup(theirs_in), os.dup(theirs_out)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen([path, *flags, "about:blank"], preexec_fn=connect, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.buffer, self.events = 0, b"", []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.of)
        self.profile.cleanup()

    def read(self):
        """Returns the next message."""
        end = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.of], [], [], max(0, end - time.monotonic()))
            data = os.read(self.of, 1 << 16) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer" if not ready else "the browser has ended")
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, session=None, **params):
        """Calls a method of the protocol and returns its result. Events that come first are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.read()).get("id") != self.number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait_for(self, method):
        """Waits for an event."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.read())


class Tab:
    """A page at one size of the screen, in light or dark."""

    def __init__(self, browser, url, width, height, scheme):
        self.browser, self.width = browser, width
        browser.events.clear()
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Network":
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        browser.wait_for("Page.loadEventFired")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def evaluate(self, script):
        """Returns the value of an expression of JavaScript."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{result['exceptionDetails']}")
        return result["result"]["value"]

    def requests(self):
        """Returns the addresses that the page has asked for."""
        return [event["params"]["request"]["url"] for event in self.browser.events
                if event.get("method") == "Network.requestWillBeSent"]

    def errors(self):
        """Returns what the console has shown as an error or a warning."""
        shown = []
        for event in self.browser.events:
            params = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    shown.append(params["exceptionDetails"]["text"])
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                    shown.append(str(params["args"]))
                case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                    shown.append(params["entry"]["text"])
        return shown

    def picture(self, clip=None):
        """Returns the whole page as a PNG, or a part of it: `[x, y, width, height]`."""
        x, y, width, height = clip or [0, 0, self.width, self.evaluate("document.documentElement.scrollHeight")]
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        return base64.b64decode(data)

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
