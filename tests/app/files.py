"""What tasks in other processes tell a test: lines of a file."""

from __future__ import annotations

from pathlib import Path


def append(path: str, line: str) -> None:
    """Append *line* in one write, so that those of several processes do not mix."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
