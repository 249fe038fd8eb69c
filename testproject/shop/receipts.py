"""What a receipt says, and how it is mailed."""

from __future__ import annotations

from decimal import Decimal

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.mail.backends.filebased import EmailBackend
from django.core.validators import validate_email
from django.template.loader import render_to_string

from .models import Order

WHOLE_CURRENCIES = {"JPY"}
"""Currencies that have no smaller unit."""


class BadAddress(Exception):
    """Nothing can be mailed to the address of an order."""


def render(order: Order) -> str:
    """Return the receipt of *order* as plain text."""
    lines = [
        {"line": line, "sum": money(line.quantity * line.price, order.currency)}
        for line in order.lines.order_by("pk")
    ]
    context = {"order": order, "lines": lines, "total": money(order.total, order.currency)}
    return render_to_string("shop/receipt.txt", context)


def money(amount: Decimal, currency: str) -> str:
    digits = 0 if currency in WHOLE_CURRENCIES else 2
    return f"{amount:,.{digits}f} {currency}"


def mail(order: Order, text: str) -> None:
    """Mail *text* to the customer of *order*. Raises BadAddress where the address is none.

    Django's file backend stands in for a mail server. Each order has a folder of its own, because
    the backend names a file by the second and by its own address in memory, and two messages of
    two workers could meet in one.
    """
    try:
        validate_email(order.email)
    except ValidationError:
        raise BadAddress(
            f"The e-mail address of order {order.number} must be valid, got {order.email!r}. "
            "Correct the order, then requeue this job."
        ) from None
    message = EmailMessage(
        subject=f"Your receipt for order {order.number}",
        body=text,
        from_email=settings.DEFAULT_FROM_EMAIL,
        to=[order.email],
    )
    EmailBackend(file_path=str(settings.RECEIPTS / order.number)).send_messages([message])
