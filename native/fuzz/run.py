"""`make fuzz`: each target for so many seconds, with libFuzzer where there is a clang that has it.

As many at a time as there are processors.

New inputs go to build/fuzz/found/<target>, those that fail to build/fuzz/crash/<target>.  The
corpus of a target is a text file, native/fuzz/corpus/<target>.txt: a line is the name of an input
and its bytes in hexadecimal, in the order of the names.  --add puts files into it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "native" / "fuzz" / "corpus"
BUILD = ROOT / "build" / "fuzz"
LOGS = "logs"  # in Python: tests/spark/fuzz_logs.py
PROBE = (
    "#include <stddef.h>\nint LLVMFuzzerTestOneInput(const void *d, size_t n)\n{ return !d && n; }"
)


def has_libfuzzer() -> bool:
    if shutil.which("clang") is None:
        return False
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.c"
        source.write_text(PROBE)
        command = ["clang", "-fsanitize=fuzzer,address", source, "-o", source.with_suffix("")]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build(targets: list[str], libfuzzer: bool) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if libfuzzer:
        environment["CC"] = "clang"
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "--log-level=WARNING"]
    configure += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DPYNOTIFY_SANITIZE=address+undefined"]
    configure += [f"-DPYNOTIFY_FUZZER={'ON' if libfuzzer else 'OFF'}", "-DPYNOTIFY_CRASHPOINTS=OFF"]
    compiling = ["cmake", "--build", BUILD, "--parallel", str(os.cpu_count()), "--target"]
    compiling += [f"fuzz_{target}" for target in targets]
    for command in (configure, compiling):
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def read_corpus(target: str) -> dict[str, bytes]:
    lines = (CORPUS / f"{target}.txt").read_text().splitlines()
    return {name: bytes.fromhex(data) for name, _, data in (line.partition(" ") for line in lines)}


def add(target: str, files: list[Path]) -> None:
    inputs = read_corpus(target) | {file.name: file.read_bytes() for file in files}
    lines = [f"{name} {inputs[name].hex()}\n" for name in sorted(inputs)]
    (CORPUS / f"{target}.txt").write_text("".join(lines))


@contextmanager
def unpacked(target: str) -> Iterator[Path]:
    """libFuzzer reads a directory."""
    with tempfile.TemporaryDirectory() as directory:
        for name, data in read_corpus(target).items():
            (Path(directory) / name).write_bytes(data)
        yield Path(directory)


def run(target: str, seconds: int, libfuzzer: bool) -> bool:
    """Whether nothing was found."""
    corpus = unpacked(target) if libfuzzer else nullcontext(CORPUS / f"{target}.txt")
    with corpus as inputs:
        return run_with(inputs, target, seconds, libfuzzer)


def run_with(inputs: Path, target: str, seconds: int, libfuzzer: bool) -> bool:
    found, crash = BUILD / "found" / target, BUILD / "crash" / target
    for directory in (found, crash):
        directory.mkdir(parents=True, exist_ok=True)
    program = str(BUILD / "native" / "fuzz" / f"fuzz_{target}")
    if libfuzzer:
        options = [f"-max_total_time={seconds}", "-timeout=20", "-max_len=2048", "-verbosity=0"]
        options += ["-print_final_stats=1", "-len_control=20", f"-artifact_prefix={crash}/", found]
    else:
        options = [f"-seconds={seconds}"]
    done = subprocess.run(
        [program, *options, inputs],
        cwd=crash,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        print(done.stdout[-8000:])
    runs = [line for line in done.stdout.splitlines() if "executed_units" in line or "runs" in line]
    print(f"fuzz_{target}: {'FAILED' if done.returncode else ''.join(runs[-1:])}", flush=True)
    return done.returncode == 0


def run_logs(seconds: int) -> bool:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "spark")])
    command = [sys.executable, ROOT / "tests" / "spark" / "fuzz_logs.py", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, env=environment, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    every = sorted(path.stem.removeprefix("fuzz_") for path in CORPUS.parent.glob("fuzz_*.c"))
    every.append(LOGS)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument(
        "--add", type=Path, nargs="+", metavar="FILE", help="to one target's corpus"
    )
    parser.add_argument("targets", nargs="*", help="default: all: " + ", ".join(every))
    arguments = parser.parse_args()
    for target in arguments.targets:
        if target not in every:
            parser.error(f"there is no target {target}, only " + ", ".join(every))
    if arguments.add:
        if len(arguments.targets) != 1 or arguments.targets == [LOGS]:
            parser.error("--add needs one target that has a corpus")
        add(arguments.targets[0], arguments.add)
        return 0
    targets: list[str] = arguments.targets or every
    native = [target for target in targets if target != LOGS]
    libfuzzer = has_libfuzzer()
    jobs = [partial(run, target, arguments.seconds, libfuzzer) for target in native]
    if LOGS in targets:
        jobs.append(partial(run_logs, arguments.seconds))
    if native:
        print("libFuzzer" if libfuzzer else "no libFuzzer: mutations of the corpus by replay.c")
        build(native, libfuzzer)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda job: job(), jobs))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
