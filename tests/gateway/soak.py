"""GW-SOAK: clients in five languages and native processes on one gateway, of which some are killed.

    make soak-gateway MINUTES=60

Each client and process notifies one channel, waits until it has heard itself, and checks that what
it hears of every sender is without gaps and without repetitions.  A random one is killed, again and
again, and another one takes its place.  In the end the segment is checked, and the latency logs of
the gateway and of the native processes are audited: all that listeners were owed was received, once
and in order.  Those of a second have some hundred thousand records, so a long soak has rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pynotify
from gateway.gateways import ROOT, GatewayProcess
from gateway.test_drivers import NODE_MODULES

PROGRAMS = Path(__file__).parent / "languages"
GO = Path("/usr/share/gocode")
CLIENTS, NATIVE = 16, 4
_ROUND = 20.0


class Kind(NamedTuple):
    """How a client of a language is started."""

    name: str
    command: list[str]


class Member(NamedTuple):
    """One client or native process."""

    kind: Kind
    name: str
    process: subprocess.Popen[str]


class Verdict(NamedTuple):
    """What came of a round; `problems` is empty if all is well."""

    languages: list[str]
    kills: Counter[str]
    problems: list[str]
    received: int  #: by slots of the gateway and native processes, as the audit has it


def _succeeds(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def go_settings(cache: Path) -> dict[str, str]:
    """The distribution's packages; nothing is fetched."""
    return {"GO111MODULE": "off", "GOPATH": str(GO), "GOCACHE": str(cache), "GOFLAGS": ""}


def languages(scratch: Path) -> Iterator[Kind]:
    """Those whose driver is there."""
    yield Kind("Python", [sys.executable, str(PROGRAMS / "soak.py")])
    if shutil.which("node") and (NODE_MODULES / "pg").exists():
        yield Kind("JavaScript", ["node", str(PROGRAMS / "soak.js")])
    if _succeeds("php", "-r", "exit(extension_loaded('pgsql') ? 0 : 1);"):
        yield Kind("PHP", ["php", str(PROGRAMS / "soak.php")])
    if _succeeds("ruby", "-rpg", "-e", ""):
        yield Kind("Ruby", ["ruby", str(PROGRAMS / "soak.rb")])
    if shutil.which("go") and (GO / "src" / "github.com" / "jackc" / "pgx" / "v4").exists():
        binary = scratch / "soak-go"
        subprocess.run(
            ["go", "build", "-o", str(binary), str(PROGRAMS / "soak.go")],
            env={**os.environ, **go_settings(scratch / "go")},
            check=True,
        )
        yield Kind("Go", [str(binary)])


class Soak:
    """All members, and the gateway."""

    def __init__(self, segment: str, scratch: Path) -> None:
        self.logs = scratch / "logs"
        self.logs.mkdir()
        self.kinds = list(languages(scratch))
        self.gateway = GatewayProcess(segment, "--latency-log", str(self.logs))
        native = [sys.executable, str(PROGRAMS / "native.py"), segment, str(self.logs)]
        self._native = Kind("native", native)
        self._started = 0
        self.members = [self._start(self.kinds[i % len(self.kinds)]) for i in range(CLIENTS)]
        self.members += [self._start(self._native) for _ in range(NATIVE)]

    def _start(self, kind: Kind) -> Member:
        self._started += 1
        name = f"{kind.name}-{self._started}"
        where = [] if kind is self._native else [str(self.gateway.directory), self._port]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NODE_PATH": str(NODE_MODULES)}
        process = subprocess.Popen(
            [*kind.command, *where, name],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Member(kind, name, process)

    @property
    def _port(self) -> str:
        return self.gateway.path.suffix[1:]

    def ended(self) -> list[str]:
        """What those said that have ended by themselves."""
        found = [member for member in self.members if member.process.poll() is not None]
        self.members = [member for member in self.members if member not in found]
        return [
            f"{member.name}: status {member.process.returncode}: {member.process.communicate()[0]}"
            for member in found
        ]

    def kill_one(self, chance: random.Random) -> str:
        """Another one of its kind takes its place; the kind."""
        at = chance.randrange(len(self.members))
        victim = self.members[at]
        victim.process.kill()
        victim.process.communicate()
        self.members[at] = self._start(victim.kind)
        return victim.kind.name

    def close(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.communicate()
        self.gateway.end()
        self.gateway.close()


def _audit(logs: Path, scratch: Path) -> tuple[list[str], int]:
    """What is wrong, and how many were received."""
    command = [sys.executable, "-m", "spark_jobs", "audit", str(logs), "--json"]
    command += ["--out", str(scratch / "audit"), "--engine", "local"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [f"audit: status {done.returncode}: {done.stdout[-2000:]}{done.stderr}"], 0
    totals = json.loads(done.stdout)["totals"]
    # "unproven" is what a process that was killed had sent, and not yet noted.
    wrong = {key: totals[key] for key in ("lost", "dup", "out_of_order", "corrupted")}
    return [f"audit: {wrong}"] if any(wrong.values()) else [], totals["distinct"]


def play(seconds: float, seed: int, pause: float = 0.5) -> Verdict:
    """Kill one about every `pause` seconds."""
    chance, kills = random.Random(seed), Counter[str]()
    segment = f"gateway-soak-{os.getpid()}"
    with (
        tempfile.TemporaryDirectory(prefix="gateway-soak-") as directory,
        pynotify.open(segment, queue_pages=8192, on_full="block") as engine,
    ):
        scratch = Path(directory)
        with contextlib.closing(Soak(segment, scratch)) as soak:
            until = time.monotonic() + seconds
            problems: list[str] = []
            while not problems and time.monotonic() < until:
                time.sleep(chance.uniform(0, 2 * pause))
                kills[soak.kill_one(chance)] += 1
                problems += soak.ended()
            problems += engine.check().problems
        found, received = _audit(soak.logs, scratch)
    pynotify.unlink(segment)
    return Verdict([kind.name for kind in soak.kinds], kills, problems + found, received)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    until = time.monotonic() + options.minutes * 60
    for seed in itertools.count(options.seed):
        verdict = play(_ROUND, seed)
        print(f"seed {seed}: {json.dumps(verdict._asdict())}", flush=True)
        if verdict.problems or time.monotonic() > until:
            return int(bool(verdict.problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
