"""What leaves a transaction when it commits, and never otherwise: messages, and jobs of a queue
that is in another database than the data.

    @outbox.destination("order-events", max_attempts=5)
    def order_events(message): requests.post(URL, json=message.payload)

    with transaction.atomic():
        order.save()
        order_events.publish({"order": order.pk}, key=str(order.pk))

The row is the record. `transaction.on_commit` only wakes the relay, which is part of runworker.
"""

from ..exceptions import NotInTransaction, PayloadError, Retry, Snooze, Terminal
from .destinations import Destination, destination
from .jobs import enqueue
from .messages import Message
from .receiving import seen

__all__ = [
    "Destination",
    "Message",
    "NotInTransaction",
    "PayloadError",
    "Retry",
    "Snooze",
    "Terminal",
    "destination",
    "enqueue",
    "seen",
]
