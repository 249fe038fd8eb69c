"""What the tests read out of a page is its text: code is looked at only where code is asked for."""

from pathlib import Path

import pytest

from tests.docpages import Page, names, rows

TEXT = """\
# Page

## `run`

| option | meaning |
| --- | --- |
| `--one` | One. |

```console
# systemctl start it
| `--two` | made up |
| --- | --- |
| `--three` | made up |
```

The text after the code.

### Part

## Another

````md
## `run`

```console
# no heading
```

(no-label)=
[no link](nowhere.md)
````
"""


@pytest.fixture
def page(tmp_path: Path) -> Page:
    path = tmp_path / "page.md"
    path.write_text(TEXT, encoding="utf-8")
    return Page(path)


def test_a_comment_in_code_ends_no_section(page: Page) -> None:
    section = page.section("`run`")
    assert "The text after the code." in section
    assert "### Part" in section
    assert "# systemctl start it" in section, "the code of a section is part of it"
    assert "Another" not in section


def test_a_heading_in_code_begins_no_section(page: Page) -> None:
    with pytest.raises(AssertionError, match="must have the heading 'systemctl start it'"):
        page.section("systemctl start it")
    with pytest.raises(AssertionError, match="must have the heading 'no heading'"):
        page.section("no heading")


def test_a_table_in_code_has_no_rows(page: Page) -> None:
    assert rows(page.section("`run`")) == [["`--one`", "One."]]
    assert names(page.text) == {"--one"}


def test_headings_labels_and_links_in_code_are_none(page: Page) -> None:
    assert page.anchors == {"page", "run", "part", "another"}
    assert page.labels == set()
    assert page.links == []


def test_code_is_found_with_its_line(page: Page) -> None:
    (code,) = page.code("console")
    assert code.text.startswith("# systemctl start it\n")
    assert TEXT.splitlines()[code.line - 1] == "# systemctl start it"
