"""What the shop's tables and folders say about its receipts."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.db.models import QuerySet

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
        retries=sum(_retries(rows) for rows in (LiveJob.objects, DeadJob.objects, Result.objects)),
    )


def _retries(rows: QuerySet[LiveJob] | QuerySet[DeadJob] | QuerySet[Result]) -> int:
    """Return how many failed attempts were followed by another one, or will be."""
    outcomes = (
        error["outcome"]
        for errors in rows.exclude(errors=[]).values_list("errors", flat=True)
        for error in errors
    )
    return sum(outcome == "failed" for outcome in outcomes)


def receipt_files() -> int:
    """Return the number of files in the folder of receipts."""
    return sum(1 for _ in settings.RECEIPTS.glob("*/*.log"))


def dead_receipts() -> list[tuple[DeadJob, Order | None]]:
    """Return the dead jobs of receipts, each with its order, in the orders' order."""
    jobs = list(DeadJob.objects.filter(task=send_receipt.module_path))
    orders = Order.objects.in_bulk([order_id(job) for job in jobs])
    found = [(job, orders.get(order_id(job))) for job in jobs]
    return sorted(found, key=lambda pair: "" if pair[1] is None else pair[1].number)


def order_id(job: DeadJob) -> int:
    """Return what send_receipt was called with."""
    return int(job.payload["args"][0])
