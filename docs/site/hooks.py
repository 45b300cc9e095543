"""What the pages of `make docs` have beside the files in docs: README and its like, the C API."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

#: Documents that stand elsewhere in the repository, by the page that shows them.
ELSEWHERE = {
    "readme.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "models.md": "native/models/README.md",
}
HEADERS = ("pynotify.h", "pynotify_topic.h")

_LINK = re.compile(r"\]\(([^)#:\s]+)")


def page_of(path: str) -> str | None:
    """The page, from the root of the site, that shows a file of the repository."""
    for page, file in ELSEWHERE.items():
        if path == file:
            return page
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def moved(text: str, file: str, page: str) -> str:
    """`text` with its links to documents as they are between pages; those to sources end."""

    def link(match: re.Match[str]) -> str:
        target = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(file), match[1])))
        if target is None:
            return match[0]
        return "](" + posixpath.relpath(target, posixpath.dirname(page) or ".")

    return _LINK.sub(link, text)


def c_page() -> str:
    parts = [
        "# The C API\n\n"
        "The headers are the reference, as they are. `make build` makes the library in\n"
        "`build/release`; `examples/c` has a listener and a notifier.\n"
    ]
    for name in HEADERS:
        header = (ROOT / "native" / "include" / name).read_text()
        parts.append(f"## {name}\n\n```c\n{header}```\n")
    return "\n".join(parts)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for page, file in ELSEWHERE.items():
        text = (ROOT / file).read_text()
        files.append(File.generated(config, page, content=moved(text, file, page)))
    files.append(File.generated(config, "reference/c.md", content=c_page()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    source = page.file.src_uri
    return markdown if source in ELSEWHERE else moved(markdown, f"docs/{source}", source)
