"""The exporter: scraped over HTTP, parsed by Prometheus' own client."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pynotify
from locked import LockHolder
from receiving import PATIENCE
from sessions import Connect, RemoteSession

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pynotify.contrib.prometheus import PynotifyCollector

ROOT = Path(__file__).resolve().parents[2]
COUNTERS = {
    "pynotify_commits_total": "commits",
    "pynotify_notifications_committed_total": "notifications",
    "pynotify_notifications_collapsed_total": "collapsed",
    "pynotify_wakeups_sent_total": "signals_sent",
    "pynotify_wakeups_suppressed_total": "signals_elided",
    "pynotify_wakeups_unsent_total": "signals_unsent",
    "pynotify_wakeups_useful_total": "wakeups_useful",
    "pynotify_wakeups_useless_total": "wakeups_useless",
    "pynotify_slot_writes_total": "slot_writes",
    "pynotify_recoveries_total": "recoveries",
    "pynotify_handler_reinstalls_total": "handler_reinstalls",
}
GAUGES = {
    "pynotify_queue_usage_ratio": "queue_usage",
    "pynotify_queue_pages": "queue_pages",
    "pynotify_channels": "channels",
    "pynotify_subscriptions": "subscriptions",
}
BACKEND_GAUGES = {
    "pynotify_backend_lag_bytes": "lag_bytes",
    "pynotify_backend_asleep": "asleep",
    "pynotify_backend_channels": "channels",
    "pynotify_backend_in_transaction": "in_transaction",
}
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


class Exporter:
    """`pynotify exporter` on a port that was free."""

    def __init__(self, *names: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pynotify", "exporter", "--port", "0", *names],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        match = re.fullmatch(r"metrics are at (127\.0\.0\.1:\d+/metrics)\n", line)
        assert match, line
        self.url = f"http://{match[1]}"

    def text(self) -> str:
        with urllib.request.urlopen(self.url, timeout=3 * PATIENCE) as answer:
            return str(answer.read().decode())

    def scrape(self) -> Samples:
        return samples(text_string_to_metric_families(self.text()))

    def close(self) -> None:
        self._process.terminate()
        _, err = self._process.communicate(timeout=PATIENCE)
        assert (self._process.returncode, err) == (-15, "")


def samples(families: Iterator[Metric]) -> Samples:
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in values, f"twice: {sample}"
            values[labels] = sample.value
    return found


def collected(collector: PynotifyCollector) -> Samples:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return samples(text_string_to_metric_families(generate_latest(registry).decode()))


@pytest.fixture
def exporter(new_name: Callable[[], str]) -> Iterator[Callable[..., Exporter]]:
    running: list[Exporter] = []

    def make(*names: str) -> Exporter:
        running.append(Exporter(*names))
        return running[-1]

    yield make
    for each in running:
        each.close()


def of(name: str) -> tuple[tuple[str, str], ...]:
    return (("segment", name),)


def test_channels_by_listeners_and_notifications(
    engine: pynotify.Engine, engine_name: str, connect: Connect
) -> None:
    listener = connect()
    listener.listen("c", "d")
    connect(database="other").listen("c")
    connect().notify_many("c", ["x", "y"])
    found = collected(PynotifyCollector(engine))

    def labels(channel: str, database: str) -> tuple[tuple[str, str], ...]:
        return (("channel", channel), ("database", database), ("segment", engine_name))

    three = (labels("c", "default"), labels("d", "default"), labels("c", "other"))
    assert found["pynotify_channel_listeners"] == dict.fromkeys(three, 1)
    assert found["pynotify_channel_notifications_total"] == dict(zip(three, (2, 0, 0), strict=True))
    assert found["pynotify_channels_left_out"] == {of(engine_name): 0}
    few = collected(PynotifyCollector(engine, max_channels=2))
    assert "pynotify_channel_listeners" not in few
    assert few["pynotify_channels_left_out"] == {of(engine_name): 3}


def test_scrape_sees_the_state_of_all_workers(
    engine: pynotify.Engine,
    engine_name: str,
    remote: Callable[..., RemoteSession],
    exporter: Callable[..., Exporter],
) -> None:
    listener, notifier = remote(engine_name), remote(engine_name, database="default")
    listener.listen("c", "d")
    notifier.notify_many("c", ["x" * 5000, "x" * 5000, "y" * 5000])
    found = exporter(engine_name).scrape()
    stat = engine.stat()
    assert stat.notifications == 2 and stat.collapsed == 1 and stat.signals_sent == 1
    for metric, attribute in {**COUNTERS, **GAUGES}.items():
        assert found[metric] == {of(engine_name): getattr(stat, attribute)}, metric
    assert found["pynotify_up"] == {of(engine_name): 1}
    assert found["pynotify_backends"] == {of(engine_name): 2}
    version = importlib.metadata.version("pynotify-ipc")
    assert found["pynotify_build_info"] == {(("version", version),): 1}
    for row in stat.backends:
        labels = {
            "segment": engine_name,
            "pid": str(row.pid),
            "backend": str(row.backend_id),
            "database": row.database,
            "comm": Path(f"/proc/{row.pid}/comm").read_text().strip(),
        }
        for metric, attribute in BACKEND_GAUGES.items():
            value = found[metric][tuple(sorted(labels.items()))]
            assert value == getattr(row, attribute), metric
    assert max(found["pynotify_backend_lag_bytes"].values()) > 10_000


def test_topics_of_every_database(engine: pynotify.Engine, connect: Connect) -> None:
    name = engine.name
    assert not any("topic" in metric for metric in collected(PynotifyCollector(engine)))
    topic = connect(database="one").topic("orders")
    connect().topic("orders").publish("elsewhere")
    channel = topic.channel("billing")
    topic.publish_many([b"12", b"345", b"6"])
    topic.publish("later", delay=3600)
    with channel.consumer() as consumer:
        consumer.get(PATIENCE).finish()
        consumer.get(PATIENCE)
        found = collected(PynotifyCollector(engine))
    labels = {"segment": name, "database": "one", "topic": "orders"}
    of_topic = tuple(sorted(labels.items()))
    of_channel = tuple(sorted({**labels, "channel": "billing"}.items()))
    assert found["pynotify_topic_messages_total"][of_topic] == 4
    assert found["pynotify_topic_unfinished"][of_topic] == 3
    for metric, value in {
        "depth": 1, "in_flight": 1, "deferred": 1, "finished_total": 1, "consumers": 1,
    }.items():  # fmt: skip
        assert found[f"pynotify_topic_channel_{metric}"][of_channel] == value, metric
    assert found["pynotify_topic_channel_oldest_seconds"][of_channel] >= 0
    quantiles = found["pynotify_topic_channel_e2e_seconds"]
    assert {dict(key)["quantile"] for key in quantiles} == {"0.5", "0.9", "0.99", "0.999"}
    elsewhere = tuple(sorted({**labels, "database": "default"}.items()))
    assert found["pynotify_topic_depth"] == {of_topic: 0, elsewhere: 1}


def test_scrapes_move_on(
    engine_name: str, conn: pynotify.Connection, exporter: Callable[..., Exporter]
) -> None:
    server = exporter(engine_name)
    before = server.scrape()["pynotify_commits_total"][of(engine_name)]
    conn.notify("c")
    assert server.scrape()["pynotify_commits_total"][of(engine_name)] == before + 1


def test_conventions(
    engine_name: str, conn: pynotify.Connection, exporter: Callable[..., Exporter]
) -> None:
    """As promtool checks them: a help text each, base units, _total on counters and only there."""
    conn.listen("c")
    families = list(text_string_to_metric_families(exporter(engine_name).text()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    for family in families:
        assert family.documentation.endswith("."), family.name
        assert re.fullmatch(r"pynotify_[a-z_]*[a-z]", family.name)
        assert not re.search(r"_(ms|us|ns|kb|mb|pages_bytes|count|sum|bucket)$", family.name)
        assert family.type in ("counter", "gauge")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
            assert "le" not in sample.labels and "quantile" not in sample.labels


def test_without_names_all_segments(
    new_name: Callable[[], str], exporter: Callable[..., Exporter]
) -> None:
    """Also one that comes later."""
    server = exporter()
    name = new_name()
    # Without any segment on the machine there is no such family at all.
    assert of(name) not in server.scrape().get("pynotify_up", {})
    with pynotify.connect(name):
        found = server.scrape()
    assert found["pynotify_up"][of(name)] == 1
    assert found["pynotify_backends"][of(name)] == 1


def test_segment_that_vanishes_and_is_replaced(
    new_name: Callable[[], str], exporter: Callable[..., Exporter]
) -> None:
    name = new_name()
    server = exporter(name)
    assert server.scrape()["pynotify_up"] == {of(name): 0}
    with pynotify.connect(name) as conn:
        conn.notify("c")
        assert server.scrape()["pynotify_commits_total"] == {of(name): 1}
        pynotify.unlink(name, force=True)
    found = server.scrape()
    assert found["pynotify_up"] == {of(name): 0}
    assert "pynotify_commits_total" not in found
    with pynotify.connect(name, queue_pages=64):
        found = server.scrape()
    assert found["pynotify_up"] == {of(name): 1}
    assert found["pynotify_commits_total"] == {of(name): 0}
    assert found["pynotify_queue_pages"] == {of(name): 64}


def test_unreadable_segment_costs_the_others_nothing(
    new_name: Callable[[], str], engine_name: str
) -> None:
    broken = new_name()
    pynotify.open(broken).close()
    (path,) = Path("/dev/shm").glob(f"pynotify.{os.geteuid()}.{broken}")
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * 4096)
    found = collected(PynotifyCollector(broken, engine_name))
    assert found["pynotify_up"] == {of(broken): 0, of(engine_name): 1}
    assert list(found["pynotify_queue_pages"]) == [of(engine_name)]


def test_a_stuck_lock_is_told_with_its_holder(
    engine: pynotify.Engine, new_name: Callable[[], str], lock_holder: LockHolder
) -> None:
    """The scrape does not wait for it, and the other segments have their figures."""
    other = new_name()
    with pynotify.connect(other):
        assert "pynotify_lock_stuck" not in collected(PynotifyCollector(engine, other))
        lock_holder.hold()
        found = collected(PynotifyCollector(engine, other))
    assert found["pynotify_up"] == {of(engine.name): 0, of(other): 1}
    comm = Path(f"/proc/{lock_holder.pid}/comm").read_text().strip()
    labels = {"segment": engine.name, "pid": str(lock_holder.pid), "comm": comm}
    assert found["pynotify_lock_stuck"] == {tuple(sorted(labels.items())): 1}
    assert list(found["pynotify_queue_pages"]) == [of(other)]


def test_engine_instead_of_a_name(new_name: Callable[[], str]) -> None:
    name = new_name()
    engine = pynotify.open(name)
    collector = PynotifyCollector(engine)
    with engine.connect() as conn:
        conn.notify("c")
    assert collected(collector)["pynotify_commits_total"] == {of(name): 1}
    pynotify.unlink(name)
    assert collected(collector)["pynotify_up"] == {of(name): 0}
    engine.close()
    assert collected(collector)["pynotify_up"] == {of(name): 0}


def test_registering_collects_nothing(new_name: Callable[[], str]) -> None:
    collector = PynotifyCollector(new_name())
    assert list(collector.describe()) == []


def test_bad_name_is_refused_at_once() -> None:
    with pytest.raises(pynotify.ProgrammingError):
        PynotifyCollector("a/b")


def test_labels_are_escaped(engine_name: str, connect: Connect) -> None:
    connect(database='a"\n\\b')
    found = collected(PynotifyCollector(engine_name))
    (labels,) = found["pynotify_backend_asleep"]
    assert dict(labels)["database"] == 'a"\n\\b'


def run_exporter(*words: str, program: str = "") -> subprocess.CompletedProcess[str]:
    code = (
        f"{program}\nimport sys\nfrom pynotify.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "exporter", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_without_the_client() -> None:
    done = run_exporter(
        "--port", "0", program="import sys; sys.modules['prometheus_client'] = None"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "pynotify exporter: the package prometheus-client is not installed",
        'Install it with the extra: pip install "pynotify-ipc[prometheus]".',
    ]


def test_port_in_use(engine_name: str, exporter: Callable[..., Exporter]) -> None:
    port = exporter(engine_name).url.split(":")[2].partition("/")[0]
    done = run_exporter("--port", port, engine_name)
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_name(engine_name: str) -> None:
    done = run_exporter("--port", "0", "a/b")
    assert done.returncode == 1
    assert "bad segment name" in done.stderr
