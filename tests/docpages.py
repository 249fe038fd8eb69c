"""The pages of the documentation as data: sections, tables, code, links and anchors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_REFERENCE = re.compile(r"\{ref\}`[^`<]*<(?P<label>[^`>]+)>`")
_LABEL = re.compile(r"^\((?P<label>[^)\n]+)\)=$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,4} (?P<title>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Code:
    """A fenced block, and the text between it and the block before it."""

    language: str
    text: str
    line: int
    before: str


@dataclass(frozen=True)
class Page:
    path: Path

    def __str__(self) -> str:
        return self.path.relative_to(DOCS).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """The text with its code blanked out; what stands elsewhere keeps its place."""
        return _without_code(self.text)

    def code(self, language: str) -> Iterator[Code]:
        ends = 0
        for match in _FENCE.finditer(self.text):
            line = self.text.count("\n", 0, match.start("code")) + 1
            if match["language"] == language:
                yield Code(language, match["code"], line, self.text[ends : match.start()])
            ends = match.end()

    def section(self, title: str) -> str:
        """Return the text under the heading *title*, up to the next of its level or above."""
        heading = re.search(rf"^(#+) {re.escape(title)}$", self.prose, re.MULTILINE)
        assert heading is not None, f"{self.path.name} must have the heading {title!r}"
        level = re.compile(rf"^#{{1,{len(heading[1])}}} ", re.MULTILINE)
        following = level.search(self.prose, heading.end())
        return self.text[heading.end() : following.start() if following else None]

    @cached_property
    def anchors(self) -> set[str]:
        """What a link may name behind the hash: labels, and the slugs of headings."""
        labels = {_identifier(match["label"]) for match in _LABEL.finditer(self.prose)}
        return labels | {_slug(match["title"]) for match in _HEADING.finditer(self.prose)}

    @cached_property
    def labels(self) -> set[str]:
        return {match["label"] for match in _LABEL.finditer(self.prose)}

    @cached_property
    def links(self) -> list[str]:
        """The targets of links to other pages, or within this one."""
        targets = [match["target"] for match in _LINK.finditer(self.prose)]
        return [target for target in targets if "://" not in target]

    @cached_property
    def references(self) -> list[str]:
        return [match["label"] for match in _REFERENCE.finditer(self.prose)]


def rows(text: str) -> list[list[str]]:
    """Return the cells of every row of the tables in *text*, without their heads."""
    found = []
    for block in re.findall(r"(?:^\|.*\|$\n?)+", _without_code(text), re.MULTILINE):
        lines = block.strip().splitlines()
        found += [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return found


def names(text: str) -> set[str]:
    """Return what stands in backticks in the first cells of the tables in *text*."""
    return {name for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])}


def page(path: str) -> Page:
    return Page(DOCS / path)


def pages() -> list[Page]:
    return [Page(path) for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts]


def _without_code(text: str) -> str:
    """Return *text* with every character of its code but the ends of lines made a space."""
    return _FENCE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)


def _identifier(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def _slug(title: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", title.lower())
    return kept.strip().replace(" ", "-")
