#!/usr/bin/env python3
"""Run the Promela models listed in MODELS and compare each result with what is expected.

One line is printed per run: its id, the result, the states stored and the seconds taken.
The exit status is 1 when a result is not the expected one. A search that ended because of
memory, time or depth is INCOMPLETE, which is never OK.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODES = ("safety", "liveness", "bitstate")
EXPECTED = ("OK", "FAIL")
SETS = ("quick", "full")
MEMORY_LIMIT_MB = 3600
QUICK_TIMEOUT_S = 120.0
FULL_TIMEOUT_S = 600.0
BITSTATE_TIMEOUT_S = 60.0
# Above this many states the compiler's optimiser (about 2 s) pays for itself.
OPTIMISE_ABOVE_STATES = 4_000_000

COMPILE_FLAGS = {
    "safety": ["-DSAFETY", "-DNOCLAIM"],
    "liveness": ["-DNFAIR=3"],
    "bitstate": ["-DSAFETY", "-DNOCLAIM", "-DBITSTATE"],
}
RUN_FLAGS = {"safety": [], "liveness": ["-a", "-f"], "bitstate": ["-w31"]}

# What pan prints when it gave up before it had seen everything.
CUT_SHORT = re.compile(
    r"reached -DMEMLIM|out of memory|max search depth too small|VECTORSZ is too small|"
    r"recompile with"
)
INTERRUPTED = re.compile(r"Search not completed")
ERRORS = re.compile(r"errors: (\d+)")
STORED = re.compile(r"^\s*([0-9.e+]+) states, stored", re.MULTILINE)
COUNTEREXAMPLE = re.compile(r"assertion violated|acceptance cycle|invalid end state \(")


@dataclass(frozen=True)
class Run:
    """One line of MODELS."""

    id: str
    file: str
    defines: tuple[str, ...]
    mode: str
    expected: str
    set: str
    states: int


@dataclass(frozen=True)
class Outcome:
    """What a run gave: OK, FAIL, INCOMPLETE or ERROR, and why."""

    result: str
    states: int
    seconds: float
    detail: str
    exhaustive: bool

    def satisfies(self, run: Run) -> bool:
        """Whether this is what MODELS expects; a quick OK must be exhaustive."""
        if self.result != run.expected:
            return False
        return self.exhaustive or run.expected == "FAIL" or run.mode == "bitstate"


def read_models(path: Path = HERE / "MODELS") -> list[Run]:
    """Parse the table; raise ValueError naming the line that is wrong."""
    runs: list[Run] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 7:
            raise ValueError(f"{path.name}:{number}: 7 fields expected, {len(fields)} found")
        name, file, defines, mode, expected, which, states = fields
        if mode not in MODES or expected not in EXPECTED or which not in SETS:
            raise ValueError(f"{path.name}:{number}: unknown mode, result or set")
        if which == "quick" and mode == "bitstate":
            raise ValueError(f"{path.name}:{number}: a bitstate search is not exhaustive")
        if any(run.id == name for run in runs):
            raise ValueError(f"{path.name}:{number}: {name} appears twice")
        runs.append(Run(name, file, tuple(defines.split()), mode, expected, which, int(states)))
    return runs


def missing_tool() -> str | None:
    """The first of the programs needed that is not installed, or None."""
    for tool in ("spin", os.environ.get("CC", "cc")):
        if shutil.which(tool) is None:
            return tool
    return None


def judge(run: Run, output: str, timed_out: bool, seconds: float) -> Outcome:
    """Read pan's report."""
    stored = STORED.search(output)
    states = int(float(stored.group(1))) if stored else 0
    errors = ERRORS.search(output)
    found = COUNTEREXAMPLE.search(output)
    cut = CUT_SHORT.search(output)
    if found and errors and int(errors.group(1)) > 0:
        detail = next(line for line in output.splitlines() if COUNTEREXAMPLE.search(line))
        return Outcome("FAIL", states, seconds, detail.strip(), False)
    if run.mode == "bitstate" and not cut and errors and int(errors.group(1)) == 0:
        detail = "bitstate, cut off by time" if timed_out else "bitstate"
        return Outcome("OK", states, seconds, f"{detail}: NOT exhaustive", False)
    if cut:
        return Outcome("INCOMPLETE", states, seconds, f"{cut.group(0)}: NOT exhaustive", False)
    if timed_out or INTERRUPTED.search(output):
        return Outcome("INCOMPLETE", states, seconds, "cut off by time: NOT exhaustive", False)
    if errors is None or stored is None or int(errors.group(1)) > 0:
        return Outcome("ERROR", states, seconds, output.strip()[-400:], False)
    return Outcome("OK", states, seconds, "", True)


def verify(run: Run) -> Outcome:
    """Translate, compile and search one model in a directory of its own."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="models-") as scratch:
        translate = subprocess.run(
            ["spin", *run.defines, "-a", str(HERE / run.file)],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        if translate.returncode != 0 or not Path(scratch, "pan.c").exists():
            return Outcome(
                "ERROR", 0, time.monotonic() - started, translate.stdout + translate.stderr, False
            )
        optimise = "-O1" if run.states > OPTIMISE_ABOVE_STATES or run.states == 0 else "-O0"
        compile_ = subprocess.run(
            [
                os.environ.get("CC", "cc"),
                optimise,
                "-w",
                f"-DMEMLIM={MEMORY_LIMIT_MB}",
                *COMPILE_FLAGS[run.mode],
                "-o",
                "pan",
                "pan.c",
            ],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        if compile_.returncode != 0:
            return Outcome("ERROR", 0, time.monotonic() - started, compile_.stderr, False)
        output, timed_out = search(run, scratch)
    return judge(run, output, timed_out, time.monotonic() - started)


def search(run: Run, scratch: str) -> tuple[str, bool]:
    """Run pan; on time-out interrupt it, so that it still prints its figures."""
    limit = QUICK_TIMEOUT_S if run.set == "quick" else FULL_TIMEOUT_S
    if run.mode == "bitstate":
        limit = BITSTATE_TIMEOUT_S
    with subprocess.Popen(
        ["./pan", "-m2000000", *RUN_FLAGS[run.mode]],
        cwd=scratch,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as pan:
        timed_out = False
        try:
            output, _ = pan.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            timed_out = True
            pan.send_signal(
                signal.SIGINT
            )  # it prints its figures, "Search not completed" among them
            try:
                output, _ = pan.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                pan.kill()
                output, _ = pan.communicate()
    return output.decode("utf-8", "replace"), timed_out


def report(run: Run, outcome: Outcome) -> str:
    """The line that stands for one run."""
    verdict = "as expected" if outcome.satisfies(run) else f"SURPRISE, expected {run.expected}"
    line = f"{run.id:20} {outcome.result:10} {outcome.states:>11,} states"
    line += f" {outcome.seconds:7.1f} s  {verdict}"
    if outcome.detail:
        line += f"  [{outcome.detail[:100]}]"
    return line


def main(argv: list[str] | None = None) -> int:
    """Command line: run the quick runs, all of them, or those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--full", action="store_true", help="the long runs too")
    parser.add_argument("--list", action="store_true", help="only list the runs")
    parser.add_argument("ids", nargs="*", help="only these runs")
    options = parser.parse_args(argv)
    runs = read_models()
    if options.ids:
        unknown = set(options.ids) - {run.id for run in runs}
        if unknown:
            parser.error(f"no such run: {', '.join(sorted(unknown))}")
        runs = [run for run in runs if run.id in options.ids]
    elif not options.full:
        runs = [run for run in runs if run.set == "quick"]
    if options.list:
        for run in runs:
            defines = " ".join(run.defines)
            print(f"{run.id:20} {run.set:5} {run.mode:8} {run.expected:4} {run.file} {defines}")
        return 0
    tool = missing_tool()
    if tool is not None:
        print(f"{tool} is not installed", file=sys.stderr)
        return 1
    surprises = 0
    for run in runs:
        outcome = verify(run)
        print(report(run, outcome), flush=True)
        surprises += not outcome.satisfies(run)
    print(f"{len(runs)} runs, {surprises} surprises")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
