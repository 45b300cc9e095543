"""`make fuzz`: each target for so many seconds, with libFuzzer where there is a clang that has it.

New inputs go to build/fuzz/found/<target>, those that fail to build/fuzz/crash/<target>.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "native" / "fuzz" / "corpus"
BUILD = ROOT / "build" / "fuzz"
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


def build(libfuzzer: bool) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if libfuzzer:
        environment["CC"] = "clang"
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "--log-level=WARNING"]
    configure += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DPYNOTIFY_SANITIZE=address+undefined"]
    configure += [f"-DPYNOTIFY_FUZZER={'ON' if libfuzzer else 'OFF'}", "-DPYNOTIFY_CRASHPOINTS=OFF"]
    compiling = ["cmake", "--build", BUILD, "--parallel", str(os.cpu_count())]
    for command in (configure, compiling):
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def run(target: str, seconds: int, libfuzzer: bool) -> bool:
    """Whether nothing was found."""
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
        [program, *options, CORPUS / target],
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("targets", nargs="*", help="default: all")
    arguments = parser.parse_args()
    libfuzzer = has_libfuzzer()
    print("libFuzzer" if libfuzzer else "no libFuzzer: mutations of the corpus by replay.c")
    build(libfuzzer)
    every = sorted(path.stem.removeprefix("fuzz_") for path in CORPUS.parent.glob("fuzz_*.c"))
    results = [run(target, arguments.seconds, libfuzzer) for target in arguments.targets or every]
    if not arguments.targets:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "spark")])
        logs = [sys.executable, ROOT / "tests" / "spark" / "fuzz_logs.py", str(arguments.seconds)]
        environment = {**os.environ, "PYTHONPATH": paths}
        results.append(subprocess.run(logs, env=environment, check=False).returncode == 0)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
