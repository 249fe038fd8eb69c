"""Saving an export's orders, each with its receipt's job in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from django.db import DataError, IntegrityError, transaction

from . import export
from .models import Order
from .tasks import send_receipt


class Fate(StrEnum):
    """What became of an order of the export."""

    SAVED = "saved"
    DUPLICATE = "duplicate"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Imported:
    """One order of the export. *job_id*: of its receipt; also of one that was rolled back."""

    fate: Fate
    number: str
    line: int
    why: str = ""
    job_id: str = ""


def save(rows: Sequence[export.Row]) -> Imported:
    """Save one order and enqueue its receipt, both or neither; say which."""
    first, job_id, at = rows[0], "", rows[0].line
    try:
        with transaction.atomic():
            fields = export.order_fields(first)
            order, created = Order.objects.get_or_create(
                number=fields.pop("number"), defaults=fields
            )
            if not created:
                return Imported(Fate.DUPLICATE, order.number, first.line)
            # Early, and safe: whatever is found amiss below takes the job back with the order.
            if order.email:
                job_id = send_receipt.enqueue(order.pk).id
            total = Decimal(0)
            for row in rows:
                at = row.line
                line = order.lines.create(**export.line_fields(row))
                total += line.quantity * line.price
            if total != order.total:
                raise export.BadRow(
                    f"Total must be the sum of the items, {total}; got {order.total}."
                )
    except (export.BadRow, IntegrityError, DataError) as error:
        why = " ".join(str(error).split())
        return Imported(Fate.REFUSED, first["Order"], at, why, job_id)
    return Imported(Fate.SAVED, order.number, first.line, job_id=job_id)
