"""Completion and the manual page: they say what the parsers say, and a real bash completes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from console import ROOT, environment, run

import shell_files
from pynotify.cli.main import COMMANDS

DIRECTORY = ROOT / "pynotify" / "cli" / "shell"

_COMPLETE = """
source {file}
COMP_WORDS=({words}) COMP_CWORD=$(({count} - 1)) COMPREPLY=()
_shtab_pynotify
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="argparse of another Python puts it in other words"
)
def test_the_files_are_of_the_parsers() -> None:
    """Else: make shell."""
    made = shell_files.files()
    assert made == {path.name: path.read_text() for path in DIRECTORY.iterdir()}


def completed(tmp_path: Path, *words: str) -> set[str]:
    file = tmp_path / "completion"
    file.write_text(run("completion", "bash").out)
    text = " ".join(f"'{word}'" for word in words)
    script = _COMPLETE.format(file=file, words=text, count=len(words))
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    return {line for line in done.stdout.splitlines() if line}


def test_bash_completes_commands_actions_and_options(tmp_path: Path) -> None:
    assert completed(tmp_path, "pynotify", "") >= set(COMMANDS)
    assert completed(tmp_path, "pynotify", "do") == {"doctor"}
    assert completed(tmp_path, "pynotify", "topics", "pe") == {"peek"}
    assert completed(tmp_path, "pynotify", "rm", "--un") == {"--unused"}


def test_bash_completes_segments(tmp_path: Path, engine_name: str) -> None:
    assert engine_name in completed(tmp_path, "pynotify", "stat", "")
    assert completed(tmp_path, "pynotify", "stat", engine_name) == {engine_name}
    assert completed(tmp_path, "pynotify", "listen", "-n", engine_name) == {engine_name}
    assert completed(tmp_path, "pynotify", "stat", "no-such-segment") == set()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_reads_its_file() -> None:
    subprocess.run(["zsh", "-n", str(DIRECTORY / "_pynotify")], check=True)


@pytest.mark.skipif(shutil.which("man") is None, reason="there is no man")
def test_the_manual_page_is_without_a_warning() -> None:
    done = subprocess.run(
        ["man", "--warnings", "-l", str(DIRECTORY / "pynotify.1")],
        env=environment(MANWIDTH="100", LC_ALL="C"),
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert [name for name in COMMANDS if f"COMMAND 'pynotify {name}'" not in done.stdout] == []
