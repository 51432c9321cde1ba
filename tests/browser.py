"""A headless Chromium whose keyboard a test presses.

`Browser` uses the DevTools protocol over two pipes (`--remote-debugging-pipe`: messages of JSON
that end with a zero byte), so it needs no port and no driver.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here: apt-get install chromium"
)
KEY_CODES = {"Tab": 9, "ArrowRight": 39, "ArrowDown": 40}
"""Virtual key codes; Chromium moves the focus and scrolls by them, not by the names."""


def browser_command(home: Path) -> list[str]:
    """The command of a browser without a window that starts no requests itself."""
    assert BROWSER is not None
    headless = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    quiet = (
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
        "--no-first-run",
    )
    return [BROWSER, *headless, *quiet, f"--user-data-dir={home}"]


class Browser:
    """One page of the browser."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self._commands, self._answers = commands, answers
        self._sent = 0
        self._session: str | None = None
        (page,) = (
            target
            for target in self.send("Target.getTargets")["targetInfos"]
            if target["type"] == "page"
        )
        attached = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        self.send("Page.enable")
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events in between are skipped."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (answer := self._read()).get("id") != self._sent:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (sign := self._answers.read(1)) != b"\0":
            assert sign, "the browser ended"
            text += sign
        return json.loads(text)

    def open(self, page: Path, *, width: int, height: int) -> None:
        """Show a file in a window of that size, and wait until it is complete."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send("Page.navigate", url=page.as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        done = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key of `KEY_CODES`."""
        names = {"key": key, "code": key, "windowsVirtualKeyCode": KEY_CODES[key]}
        self.send("Input.dispatchKeyEvent", type="rawKeyDown", **names)
        self.send("Input.dispatchKeyEvent", type="keyUp", **names)


@contextmanager
def browser(home: Path) -> Iterator[Browser]:
    """Start a browser with its profile in `home`, and end it."""
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()
    # The browser reads from descriptor 3 and writes to 4.
    shell = ["bash", "-c", f'exec "$@" 3<&{read_commands} 4>&{write_answers}', "bash"]
    process = subprocess.Popen(
        [*shell, *browser_command(home), "--remote-debugging-pipe", "about:blank"],
        env=os.environ | {"HOME": str(home)},
        pass_fds=(read_commands, write_answers),
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    with os.fdopen(write_commands, "wb") as commands, os.fdopen(read_answers, "rb") as answers:
        try:
            yield Browser(commands, answers)
        finally:
            process.kill()
            process.wait()
