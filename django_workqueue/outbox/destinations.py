"""Destinations: what a message is published to, and the handler that delivers it."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import async_to_sync

from .. import arguments, conf, payload
from ..backoff import Policy, check_policy
from ..states import Lane, OutboxKind
from ..transactions import require_open
from .databases import database_of
from .messages import Message

if TYPE_CHECKING:
    from ..store import NewJob

Handler = Callable[[Message], Any]
Errors = type[BaseException] | tuple[type[BaseException], ...]

QUEUE_PREFIX: Final = "outbox:"
NAME_LENGTH: Final = arguments.NAME_LENGTH - len(QUEUE_PREFIX)
RESERVED: Final = OutboxKind.MOVE.value
"""The queue of this name holds jobs on their way to the queue's database."""

_declared: dict[str, Destination] = {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Destination:
    """A name that messages are published to, and how they are delivered.

    None stands for the setting, resolved when a message is published. *backoff*, *retry_on* and
    *terminal_on* mean what they mean for a task; a backoff that is a function gets the exception
    and the message. With *skip_dead*, a message that died does not hold back its key.
    """

    name: str
    handler: Handler
    ordered: bool = True
    max_attempts: int | None = None
    backoff: Policy = None
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    terminal_on: tuple[type[BaseException], ...] = ()
    # Seconds that the record of a delivered message is kept.
    result_ttl: float | None = None
    skip_dead: bool = False

    def __call__(self, message: Message) -> None:
        """Deliver *message* now, in this thread. Raises what the handler raises."""
        if inspect.iscoroutinefunction(self.handler):
            async_to_sync(self.handler)(message)
        else:
            self.handler(message)

    @property
    def queue_name(self) -> str:
        return QUEUE_PREFIX + self.name

    def publish(
        self,
        payload: Any,
        *,
        key: str = "",
        using: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> uuid.UUID:
        """Write a message in the caller's transaction of *using*; return its id.

        *using* None: the first of OUTBOX_DATABASES. Messages of one *key* are first delivered in
        the order in which their transactions commit; without a key there is no order. Holds the
        key until the caller's commit. Raises NotInTransaction outside of ``atomic()``, and
        ValueError for an argument, before any SQL.
        """
        from .. import notifying
        from ..store import get_store

        alias = database_of(using, "publish()")
        require_open(alias, f"publish() to {self.name!r}")
        message = self._message(payload, key, headers)
        store = get_store(alias)
        if self.ordered and key:
            message = message.numbered(store.next_seq(self.queue_name, key))
        store.insert([message])
        notifying.notify(store)
        return message.id

    def _message(self, content: Any, key: str, headers: Mapping[str, Any] | None) -> NewJob:
        from ..store import NewJob

        settings = conf.current()
        limit = settings.payload_max_bytes
        if headers is not None and not isinstance(headers, Mapping):
            raise arguments.refusal("headers", "a mapping", headers, "Leave it out for none.")
        ttl = settings.result_ttl_seconds if self.result_ttl is None else self.result_ttl
        kind = OutboxKind.SKIPPABLE if self.skip_dead else OutboxKind.MESSAGE
        return NewJob(
            lane=Lane.OUTBOX,
            queue_name=self.queue_name,
            kind=kind.value,
            payload=payload.encode(content, max_bytes=limit, root="payload", what="payload"),
            order_key=arguments.name("key", key, may_be_empty=True),
            max_attempts=self.max_attempts or settings.max_attempts,
            result_ttl=ttl,
            headers=payload.encode(dict(headers or {}), max_bytes=limit, root="headers"),
        )


def destination(
    name: str,
    *,
    ordered: bool = True,
    max_attempts: int | None = None,
    backoff: Policy = None,
    retry_on: Errors = (Exception,),
    terminal_on: Errors = (),
    result_ttl: float | None = None,
    skip_dead: bool = False,
) -> Callable[[Handler], Destination]:
    """Make a function the handler of the messages published to *name*.

    It is given a Message, and has delivered it when it returns. Raises ValueError for an option
    that cannot be used, and for a name that another function has.
    """

    def declare(handler: Handler) -> Destination:
        made = Destination(
            name=_checked_name(name),
            handler=_checked_handler(handler),
            ordered=_flag("ordered", ordered),
            max_attempts=_checked_attempts(max_attempts),
            backoff=check_policy(backoff),
            retry_on=_classes("retry_on", retry_on),
            terminal_on=_classes("terminal_on", terminal_on),
            result_ttl=_checked_ttl(result_ttl),
            skip_dead=_flag("skip_dead", skip_dead),
        )
        return _declare(made)

    return declare


def declared() -> dict[str, Destination]:
    """Return the destinations of this process by the names of their queues."""
    return {each.queue_name: each for each in list(_declared.values())}


def _declare(made: Destination) -> Destination:
    known = _declared.get(made.name)
    if known is not None and _path(known.handler) != _path(made.handler):
        raise arguments.refusal(
            "name",
            f"that of no other destination than {_path(known.handler)}",
            made.name,
            "One name is one handler; give this one another.",
        )
    _declared[made.name] = made
    return made


def _path(handler: Handler) -> str:
    return f"{handler.__module__}.{getattr(handler, '__qualname__', repr(handler))}"


def _checked_name(name: Any) -> str:
    checked = arguments.name("name", name)
    if len(checked) > NAME_LENGTH:
        rule = f"a string of at most {NAME_LENGTH} characters"
        raise arguments.refusal("name", rule, name, "Use a short name that people recognize.")
    if checked == RESERVED:
        hint = "That name is kept for jobs on their way to the queue's database."
        raise arguments.refusal("name", f"another than {RESERVED!r}", name, hint)
    return checked


def _checked_handler(handler: Any) -> Handler:
    if not callable(handler):
        raise arguments.refusal("handler", "a function of the message", handler, "Decorate one.")
    return handler  # type: ignore[no-any-return]  # what it takes shows at the first delivery


def _checked_attempts(value: Any) -> int | None:
    if value is None:
        return None
    hint = "1 means that a message is never tried again."
    return arguments.whole("max_attempts", value, least=1, most=conf.MAX_MAX_ATTEMPTS, hint=hint)


def _checked_ttl(value: Any) -> float | None:
    if value is None:
        return None
    return arguments.seconds("result_ttl", value, hint="Use 0 to keep no record of what went out.")


def _classes(option: str, value: Any) -> tuple[type[BaseException], ...]:
    classes = tuple(value) if isinstance(value, tuple | list) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise arguments.refusal(option, "exception classes", each, "Name the classes.")
    return classes


def _flag(option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise arguments.refusal(option, "True or False", value, "Write one of them.")
    return value
