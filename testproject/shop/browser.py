"""What a person does in the admin, done by a program: open a page, fill in its form, submit it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urljoin

from django.test import Client

Attributes = list[tuple[str, str | None]]


class UnexpectedPage(Exception):
    """The admin answered with something else than what was asked for."""


@dataclass(slots=True)
class Form:
    """A form of a page, with what its fields hold."""

    action: str
    fields: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str | None, value: str | None) -> None:
        if name:
            self.fields.setdefault(name, []).append(value or "")


class Page(HTMLParser):
    """A page's forms, and the messages that the admin shows on it."""

    def __init__(self, path: str, html: str) -> None:
        super().__init__()
        self.path = path
        self.forms: list[Form] = []
        self.messages: list[str] = []
        self._form: Form | None = None
        self._select = ""
        self._textarea: tuple[str, list[str]] | None = None
        self._in_messages = False
        self.feed(html)

    def form_with(self, name: str) -> Form:
        """Return the form that has a field *name*. Raises UnexpectedPage."""
        for form in self.forms:
            if name in form.fields:
                return form
        raise UnexpectedPage(f"The page {self.path} must have a form with {name!r}, it has none.")

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        given = dict(attrs)
        if tag == "ul":
            self._in_messages = given.get("class") == "messagelist"
        elif tag == "li" and self._in_messages:
            self.messages.append("")
        elif tag == "form":
            self._form = Form(given.get("action") or "")
            self.forms.append(self._form)
        elif self._form is not None and "disabled" not in given:
            self._field(self._form, tag, given)

    def _field(self, form: Form, tag: str, given: dict[str, str | None]) -> None:
        if tag == "input":
            kind = given.get("type") or "text"
            is_choice = kind in {"checkbox", "radio"}
            if kind not in {"submit", "button", "file"} and (not is_choice or "checked" in given):
                form.add(given.get("name"), given.get("value"))
            elif is_choice and given.get("name"):
                form.fields.setdefault(str(given["name"]), [])
        elif tag == "select":
            self._select = given.get("name") or ""
            form.fields.setdefault(self._select, [])
        elif tag == "option" and "selected" in given:
            form.add(self._select, given.get("value"))
        elif tag == "textarea":
            self._textarea = (given.get("name") or "", [])

    def handle_endtag(self, tag: str) -> None:
        if tag == "ul":
            self._in_messages = False
        elif tag == "form":
            self._form = None
        elif tag == "textarea" and self._textarea and self._form is not None:
            name, texts = self._textarea
            # A line end right behind the tag is not part of the text.
            self._form.add(name, "".join(texts).removeprefix("\r").removeprefix("\n"))
            self._textarea = None

    def handle_data(self, data: str) -> None:
        if self._textarea is not None:
            self._textarea[1].append(data)
        elif self._in_messages and self.messages:
            self.messages[-1] += data


class Browser:
    """Django's test client, sending what a page's form holds, its CSRF token among it."""

    def __init__(self) -> None:
        self._client = Client(enforce_csrf_checks=True, SERVER_NAME="127.0.0.1")

    def open(self, path: str) -> Page:
        return self._page(path, self._client.get(path, follow=True))

    def submit(self, page: Page, having: str, **changes: str | list[str]) -> Page:
        """Submit the form of *page* that has the field *having*, with some fields changed."""
        form = page.form_with(having)
        data = {**form.fields, **changes}
        path = urljoin(page.path, form.action)
        return self._page(path, self._client.post(path, data, follow=True))

    def _page(self, path: str, response: object) -> Page:
        status: int = response.status_code  # type: ignore[attr-defined]  # the client's own class
        if status != 200:
            raise UnexpectedPage(f"The admin must answer {path} with 200, got {status}.")
        chain: list[tuple[str, int]] = response.redirect_chain  # type: ignore[attr-defined]
        html: str = response.content.decode()  # type: ignore[attr-defined]
        return Page(chain[-1][0] if chain else path, html)
