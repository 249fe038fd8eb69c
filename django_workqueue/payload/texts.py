"""Texts and exceptions, made storable."""

import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from .refusals import class_path

_CLASS_PATH_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An exception as three texts that every database stores; nothing is rebuilt from them."""

    exception_class_path: str
    message: str
    traceback: str
    cut: bool
    """True when the message or the traceback was too long to keep whole."""


def storable_text(text: str, *, max_bytes: int) -> str:
    r"""Return *text* as at most *max_bytes* of UTF-8 that every database stores.

    A NUL becomes the four characters `\x00`, a lone surrogate `\udc80`. What is too long keeps a
    third from its head and the rest from its tail (a traceback ends with what was raised) around
    a mark that says how many bytes there were; a limit too small for the mark keeps the head only.
    """
    return _storable(text, max_bytes)[0]


def describe_error(exc: BaseException, *, max_bytes: int) -> ErrorText:
    """Return the class path, message and traceback of *exc*, together at most *max_bytes*.

    Never raises, whatever *exc* does: where its own code fails, the text says so instead. That
    includes a SystemExit or KeyboardInterrupt raised by that code, since the outcome of a job must
    be written in any case. The message gets at most a quarter of the bytes, the traceback the rest.
    """
    path = storable_text(class_path(type(exc)), max_bytes=min(_CLASS_PATH_BYTES, max_bytes))
    left = max_bytes - len(path.encode())
    message, message_cut = _storable(_message(exc), left // 4)
    left -= len(message.encode())
    stack, piece_cut = _traceback(exc, piece_bytes=left // 3)
    stack, stack_cut = _storable(stack, left)
    return ErrorText(path, message, stack, cut=message_cut or piece_cut or stack_cut)


def _storable(text: str, max_bytes: int) -> tuple[str, bool]:
    data = str.encode(text, "utf-8", "backslashreplace").replace(b"\x00", rb"\x00")
    size = len(data)
    if size <= max_bytes:
        return data.decode(), False
    mark = f"… [truncated: {size} bytes] …".encode()
    room = max_bytes - len(mark)
    if room < 0:
        return data[: max(0, max_bytes)].decode(errors="ignore"), True
    head = data[: room // 3]
    tail = data[size - (room - len(head)) :]
    # "ignore" drops the halves of characters at the cuts; everything else is valid UTF-8.
    return "".join(part.decode(errors="ignore") for part in (head, mark, tail)), True


def _message(exc: BaseException) -> str:
    try:
        return str(exc)
    except BaseException as error:  # noqa: BLE001 - the exception's own code; see describe_error
        return f"<str() of the exception raised {class_path(type(error))}>"


def _traceback(exc: BaseException, piece_bytes: int) -> tuple[str, bool]:
    """Return the traceback with every cause, and whether a piece of it was cut.

    Each frame, message and note is cut by itself, so that no long one hides the others.
    """
    try:
        details = traceback.TracebackException(type(exc), exc, _frames_of(exc), compact=True)
        pieces = [_piece(piece, piece_bytes) for piece in details.format()]
    except BaseException as error:  # noqa: BLE001 - the exception's own code; see describe_error
        reason = f"<formatting the exception raised {class_path(type(error))}>\n"
        return _plain_traceback(exc) + reason, False
    return "".join(text for text, _ in pieces), any(cut for _, cut in pieces)


def _piece(piece: str, max_bytes: int) -> tuple[str, bool]:
    text, cut = _storable(piece, max_bytes)
    return (text if text.endswith("\n") else text + "\n"), cut


def _plain_traceback(exc: BaseException) -> str:
    """Return the frames and the class, without touching the exception's own attributes."""
    lines = [
        f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}\n'
        for frame, line in traceback.walk_tb(_frames_of(exc))
    ]
    head = "Traceback (most recent call last):\n" if lines else ""
    return f"{head}{''.join(lines)}{class_path(type(exc))}\n"


def _frames_of(exc: BaseException) -> TracebackType | None:
    """Return the traceback itself, past any `__traceback__` that the class defines."""
    frames: TracebackType | None = vars(BaseException)["__traceback__"].__get__(exc)
    return frames
