"""The shop's background jobs."""

from __future__ import annotations

from django.utils import timezone

from django_workqueue.tasks import Backoff, task

from . import receipts
from .models import Order


# Half a second and a second, so that nobody waits in a demonstration; a mail server gets minutes.
@task(max_attempts=3, backoff=Backoff(base=0.5, factor=2, maximum=5))
def send_receipt(order_id: int) -> str:
    """Mail the receipt of an order, unless that was done; return what was done."""
    order = Order.objects.get(pk=order_id)
    # A job runs at least once: a second start must not mail a second time. What remains is a crash
    # between the next two statements, which no queue can tell from a mail that was never sent.
    if order.receipt_sent_at is not None:
        return f"{order.number}: sent before"
    receipts.mail(order, receipts.render(order))
    Order.objects.filter(pk=order.pk).update(receipt_sent_at=timezone.now())
    return f"{order.number}: sent to {order.email}"
