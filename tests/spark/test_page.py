"""What the report's page does in a browser: Chromium, driven through its debugging protocol."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, receives, sends
from websockets.sync.client import ClientConnection, connect

from receiving import PATIENCE
from requirement import require
from spark_jobs.cli import main
from spark_jobs.logs.schema import Kind

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHANNELS = 12

if CHROMIUM is None:
    require("chromium", "Chromium is not installed")


class Browser:
    """One page of it."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._numbers)
        request: dict[str, Any] = {"id": number, "method": method, "params": arguments}
        if self._session is not None:
            request["sessionId"] = self._session
        self._connection.send(json.dumps(request))
        while True:
            answer = json.loads(self._connection.recv(PATIENCE))
            if answer.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(answer["params"]))
            elif answer.get("method") == "Log.entryAdded":
                self.complaints.append(answer["params"]["entry"]["text"])
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        while self.ask("document.readyState + location.protocol") != "completefile:":
            pass

    def ask(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, clicks: int = 1) -> None:
        button = "none" if kind == "mouseMoved" else "left"
        self.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button=button,
            buttons=1,
            clickCount=clicks,
        )


def written(logs: Path, slower: int = 1) -> Path:
    """Channel n takes n + 1 us, and those with an even number `slower` times that."""
    sender, listener = LogWriter(logs, 9, clock=10**18), LogWriter(logs, 1, clock=10**18)
    seq = np.arange(400)
    ts = 10**9 + seq * 10**7
    for number in range(CHANNELS):
        name = f"channel.{number}"
        sends(sender, name, seq, ts=ts)
        listener.add(Kind.LISTEN, channel=name, chan_seq=0, ts=10**9)
        late = 1000 * (number + 1) * (1 if number % 2 else slower)
        receives(listener, name, seq, ts=ts + late, ref_ts=ts)
    for log in (sender, listener):
        log.write()
    return logs


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs, out = written(tmp_path_factory.mktemp("logs")), tmp_path_factory.mktemp("out")
    assert main(["report", str(logs), "--out", str(out)]) == 0
    return out / "report.html"


@pytest.fixture
def browser(page: Path, tmp_path: Path) -> Iterator[Browser]:
    with browsing(page, tmp_path) as made:
        yield made


@contextmanager
def browsing(page: Path, tmp_path: Path) -> Iterator[Browser]:
    assert CHROMIUM is not None
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
    own = (f"--user-data-dir={tmp_path}", "--window-size=1100,3000", "about:blank")
    with subprocess.Popen(
        [CHROMIUM, *options, *own], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stderr is not None
            found = (re.search(r"listening on (ws://\S+)", line) for line in process.stderr)
            url = next(match[1] for match in found if match)
            with connect(url, max_size=None) as connection:
                made = Browser(connection)
                made.open(page.as_uri())
                yield made
                assert made.complaints == []
                made.call("Page.close")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def column(number: int) -> str:
    """What the first table shows in it."""
    return (
        "[...document.querySelector('table').tBodies[0].rows].filter(row => !row.hidden)"
        f".map(row => row.cells[{number}].textContent)"
    )


def test_tables_are_sorted_and_filtered(browser: Browser) -> None:
    names = [f"channel.{number}" for number in range(CHANNELS)]
    head = "document.querySelector('table').tHead.rows[0].cells"
    browser.ask(f"{head}[0].click()")
    assert browser.ask(column(0)) == names[::-1], "10 comes after 9"
    browser.ask(f"{head}[8].click()")
    assert browser.ask(column(0)) == names[::-1], "by numbers, not by their texts"
    browser.ask(f"{head}[8].click()")
    assert browser.ask(column(0)) == names
    assert browser.ask(f"{head}[8].getAttribute('aria-sort')") == "ascending"
    assert browser.ask(f"{head}[0].getAttribute('aria-sort')") is None
    browser.ask(
        "field = document.querySelector('input'); field.value = 'NEL.1';"
        "field.dispatchEvent(new Event('input'))"
    )
    assert browser.ask(column(0)) == ["channel.1", "channel.10", "channel.11"]


def shown(browser: Browser, plot: int) -> tuple[float, float]:
    """From which share of the time to which a plot shows."""
    box, left, wide = browser.ask(
        f"(() => {{ const data = document.querySelectorAll('svg.zooms .data')[{plot}];"
        "return [data.getAttribute('viewBox').split(' ').map(Number),"
        "Number(data.getAttribute('x')), Number(data.getAttribute('width'))] })()"
    )
    return (box[0] - left) / wide, (box[0] - left + box[2]) / wide


def test_dragging_shows_a_part_of_the_time(browser: Browser) -> None:
    plots = browser.ask("document.querySelectorAll('svg.zooms').length")
    assert plots == 3
    place = browser.ask(
        "(() => { const box = document.querySelector('svg.zooms .grid').ownerSVGElement"
        ".querySelector('.data').getBoundingClientRect();"
        "return [box.left, box.top, box.width, box.height] })()"
    )
    assert [shown(browser, plot) for plot in range(plots)] == [(0, 1)] * plots
    left, top, wide, high = place
    y = top + high / 2
    for _ in range(2):  # a part of the part
        browser.mouse("mousePressed", left + wide / 4, y)
        browser.mouse("mouseMoved", left + wide / 2, y)
        browser.mouse("mouseReleased", left + 3 * wide / 4, y)
    for plot in range(plots):
        assert shown(browser, plot) == pytest.approx((3 / 8, 5 / 8), abs=0.01)
    labels = browser.ask(
        "[...document.querySelectorAll('svg.zooms .ticks')[0].querySelectorAll('text')]"
        ".map(each => each.textContent)"
    )
    assert 3 <= len(labels) <= 7
    assert labels == sorted(labels)
    assert all(re.fullmatch(r"01:46:4\d\.\d00", label) for label in labels)
    assert browser.ask("document.querySelectorAll('.choice').length") == 0
    for clicks in (1, 2):
        browser.mouse("mousePressed", left + wide / 2, y, clicks)
        browser.mouse("mouseReleased", left + wide / 2, y, clicks)
    for plot in range(plots):
        assert shown(browser, plot) == pytest.approx((0, 1))


def test_before_and_after_side_by_side(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("old", "new", "out", "profile")}
    for name, slower in (("old", 1), ("new", 3)):
        written(places[name], slower)
    given = ["report", str(places["new"]), "--before", str(places["old"])]
    assert main([*given, "--out", str(places["out"])]) == 0
    with browsing(places["out"] / "report.html", places["profile"]) as browser:
        heading = "document.querySelector('h2')"
        assert browser.ask(f"{heading}.textContent") == "Before and after"
        verdict = browser.ask(f"{heading}.nextElementSibling.textContent")
        assert "largest is the ratio of channel." in verdict
        curves = browser.ask(
            "[...document.querySelector('svg').querySelectorAll('.curve')]"
            ".map(each => each.getBoundingClientRect()).map(box => [box.width, box.top, box.left])"
        )
        assert len(curves) == 2
        assert all(wide > 100 for wide, *_ in curves), "both are drawn"
        assert curves[1][1] < curves[0][1], "what is slower is higher up"
        names = [name for name in browser.ask(column(0)) if name.startswith("channel")]
        grown = {f"channel.{number}" for number in range(0, CHANNELS, 2)}
        assert (set(names[:6]), len(names)) == (grown, CHANNELS), "what has grown is first"
        ratio = "[...document.querySelector('table').tHead.rows[0].cells].map(c => c.textContent)"
        at = browser.ask(ratio).index("p99 before") + 2
        browser.ask(f"document.querySelector('table').tHead.rows[0].cells[{at}].click()")
        assert browser.ask(column(at)) == ["3.00"] * 6 + ["2.74"] * 2 + ["1.00"] * 6
        lines = "document.querySelector('table').tBodies[0].rows[0].getBoundingClientRect().height"
        assert browser.ask(lines) < 60, "names are not broken into letters"
        fits = "(box => box.scrollWidth >= box.clientWidth)(document.querySelector('table'))"
        assert browser.ask(fits)
        assert browser.ask("document.body.scrollWidth <= document.documentElement.clientWidth")
