"""Messages of the outbox for a Celery task of another service, through its broker.

The database stays the record, and Celery does the work: a message leaves the outbox once the
broker has said that it has it. No result backend is asked for anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

from ... import arguments, conf, outbox
from ...backoff import Backoff, Policy
from ...outbox import Destination, Message

try:
    from celery import Celery
    from kombu.exceptions import EncodeError
    from kombu.pools import producers
except ModuleNotFoundError as missing:
    raise ImproperlyConfigured(
        f"celery_destination() must have Celery, got {missing}. "
        'Install it with: pip install "django-workqueue[celery]"'
    ) from missing

CONNECT_SECONDS: Final = 5
ANSWER_SECONDS: Final = 10.0
"""How long a broker may take to accept a connection, and to say that it has a message."""

BROKER_BACK: Final = Backoff(base=1, factor=2, maximum=60)
"""The broker is down: nothing else is likely to be the matter for long."""

ONCE_MORE: Final[dict[str, Any]] = {
    "retry": True,
    "retry_policy": {"max_retries": 1, "interval_start": 0, "interval_max": 0},
}
"""At once, and no more: the broker may have restarted since a pooled connection was used."""

BY_TRANSPORT: Final[dict[str, dict[str, Any]]] = {
    # Without confirms, what was written to a socket counts as sent, and is lost with the broker.
    "amqp": {
        "confirm_publish": True,
        "read_timeout": ANSWER_SECONDS,
        "write_timeout": ANSWER_SECONDS,
        "confirm_timeout": ANSWER_SECONDS,
    },
    "redis": {"socket_connect_timeout": CONNECT_SECONDS, "socket_timeout": ANSWER_SECONDS},
}


@dataclass(frozen=True, slots=True)
class _Publishing:
    """The handler: sends a message to the Celery task *task* of *app*'s broker."""

    # Left out of the repr, which tells two handlers of one name apart.
    app: Celery = field(repr=False)
    task: str
    queue: str | None
    priority: int | None
    expires: float | None

    def __call__(self, message: Message) -> None:
        args, kwargs = _call_of(message)
        task_id = str(message.id)
        amqp: Any = self.app.amqp
        # The same id at every attempt: the receiver finds it in self.request.id.
        told = amqp.create_task_message(
            task_id, self.task, args, kwargs, expires=self.expires, root_id=task_id
        )
        options = {"queue": self.queue} if self.queue else {}
        if self.priority is not None:
            options["priority"] = self.priority  # type: ignore[assignment]  # an option of AMQP
        route = amqp.router.route(options, self.task, args, kwargs)
        own = {name: value for name, value in message.headers.items() if name not in told.headers}
        pool = producers[self._connection()]
        with pool.acquire(block=True, timeout=ANSWER_SECONDS) as producer:
            try:
                send = amqp.send_task_message
                send(producer, self.task, told, headers=own, **route, **ONCE_MORE)
            except EncodeError as error:
                raise outbox.Terminal(f"the serializer refuses the payload: {error}") from error

    def _connection(self) -> Any:
        """Return the broker's address with time limits; its pool is kombu's, by address."""
        url = self.app.conf.broker_write_url or self.app.conf.broker_url
        connection: Any = self.app.connection_for_write(url)
        options = BY_TRANSPORT.get(connection.transport.driver_type, {})
        given = self.app.conf.broker_transport_options or {}
        return self.app.connection(
            url, connect_timeout=CONNECT_SECONDS, transport_options={**options, **given}
        )


def _call_of(message: Message) -> tuple[list[Any], dict[str, Any]]:
    """Return the task's arguments: a dict by name, a list in order."""
    content = message.payload
    if isinstance(content, dict):
        return [], content
    if isinstance(content, list):
        return content, {}
    raise outbox.Terminal(
        f"a message for a Celery task must be a dict, its arguments by name, or a list, got "
        f"{content!r:.80}. Publish the arguments."
    )


def _checked_priority(value: Any) -> int:
    hint = "What it means is the broker's: RabbitMQ takes 9 before 0, Redis 0 before 9."
    return arguments.whole("priority", value, least=0, most=255, hint=hint)


def celery_destination(
    name: str,
    *,
    app: Celery,
    task: str,
    queue: str | None = None,
    priority: int | None = None,
    expires: float | None = None,
    ordered: bool = True,
    max_attempts: int = conf.MAX_MAX_ATTEMPTS,
    backoff: Policy = BROKER_BACK,
    result_ttl: float | None = None,
    skip_dead: bool = False,
) -> Destination:
    """Return the destination *name*, whose messages run *task* in the workers of *app*'s broker.

    What is published is the task's arguments: a dict by name, or a list. *queue* None: where the
    app's routes send it. *expires*: seconds after which a worker leaves the task out. While the
    broker is down, a message is tried again, at most a minute apart. Raises ValueError for an
    option that cannot be used.
    """
    if not isinstance(app, Celery):
        raise arguments.refusal("app", "a Celery app", app, 'Make one: Celery(broker="redis://…").')
    publishing = _Publishing(
        app=app,
        task=arguments.name("task", task),
        queue=None if queue is None else arguments.name("queue", queue),
        priority=None if priority is None else _checked_priority(priority),
        expires=None if expires is None else arguments.seconds("expires", expires, hint="Or None."),
    )
    declare = outbox.destination(
        name,
        ordered=ordered,
        max_attempts=max_attempts,
        backoff=backoff,
        result_ttl=result_ttl,
        skip_dead=skip_dead,
    )
    return declare(publishing)
