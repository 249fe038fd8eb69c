"""What the shop's tables and folders say about its receipts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Model

from django_workqueue.models import DeadJob, LiveJob, Result

from .models import Order
from .tasks import send_receipt


@dataclass(frozen=True, slots=True)
class Counts:
    """How far the receipts are. *waiting*: jobs that run, or will."""

    orders: int
    mailed: int
    waiting: int
    dead: int
    retries: int

    def __str__(self) -> str:
        return (
            f"{self.orders} orders, {self.mailed} receipts mailed, {self.waiting} waiting, "
            f"{self.retries} retries, {self.dead} dead"
        )


def count() -> Counts:
    """Count what is there now. For tables of hundreds: it counts whole ones."""
    return Counts(
        orders=Order.objects.count(),
        mailed=Order.objects.filter(receipt_sent_at__isnull=False).count(),
        waiting=LiveJob.objects.count(),
        dead=DeadJob.objects.count(),
        retries=sum(_retries(model) for model in (LiveJob, DeadJob, Result)),
    )


def _retries(model: type[Model]) -> int:
    """Return how many failed attempts were followed by another one, or will be."""
    rows: list[list[dict[str, Any]]] = list(
        model._default_manager.exclude(errors=[]).values_list("errors", flat=True)
    )
    return [error["outcome"] for errors in rows for error in errors].count("failed")


def receipt_files() -> int:
    """Return the number of files in the folder of receipts."""
    return len(list(settings.RECEIPTS.glob("*/*.log")))


def dead_receipts() -> list[tuple[DeadJob, Order | None]]:
    """Return the dead jobs of receipts, each with its order, in the orders' order."""
    jobs = list(DeadJob.objects.filter(task=send_receipt.module_path))
    orders = Order.objects.in_bulk([order_id(job) for job in jobs])
    found = [(job, orders.get(order_id(job))) for job in jobs]
    return sorted(found, key=lambda pair: "" if pair[1] is None else pair[1].number)


def order_id(job: DeadJob) -> int:
    """Return what send_receipt was called with."""
    payload: Any = job.payload
    return int(payload["args"][0])
