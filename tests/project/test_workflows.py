"""The workflows of a forge say what this repository has."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")
ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load(path.read_text())
    return [step for job in document["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_targets_of_make_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    called = [word for step in steps(path) for word in re.findall(r"\bmake ([a-z-]+)", str(step))]
    assert called
    assert set(called) <= targets


def test_every_python_of_the_classifiers_is_tested() -> None:
    document = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    tested = document["jobs"]["test"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: "
    claimed = [line.removeprefix(prefix) for line in project["classifiers"] if prefix in line]
    assert tested == [name for name in claimed if "." in name]


def test_only_publishing_may_ask_for_an_identity() -> None:
    """And what is published was built by a job that cannot."""
    document = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert document["permissions"] == {"contents": "read"}
    assert "permissions" not in document["jobs"]["build"]
    assert document["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert document["jobs"]["publish"]["environment"] == "release"


def changelog_step() -> str:
    (run,) = (
        step["run"]
        for step in steps(ROOT / ".github" / "workflows" / "release.yml")
        if "CHANGELOG.md" in str(step.get("run"))
    )
    return str(run)


@pytest.mark.parametrize(
    ("heading", "is_released"),
    [
        ("## [1.2.3] - 2026-12-01", True),
        ("## [1.2.3] - not released yet", False),
        ("## [1.2.30] - 2026-12-01", False),
        ("## [Unreleased]", False),
    ],
)
def test_a_version_without_a_day_in_the_changelog_is_not_released(
    tmp_path: Path, heading: str, is_released: bool
) -> None:
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\n### Added\n")
    done = subprocess.run(
        ["bash", "-c", changelog_step()],
        cwd=tmp_path,
        env={**os.environ, "GITHUB_REF_NAME": "v1.2.3"},
        check=False,
    )
    assert (done.returncode == 0) == is_released


def test_the_changelog_has_the_version_that_is_made() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == project["version"]


def test_pip_is_the_first_line_of_the_readme() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    blocks = re.findall(r"^```\w*\n(.*?)\n", (ROOT / "README.md").read_text(), re.M)
    assert blocks[0].startswith(f"pip install {project['name']} ")
