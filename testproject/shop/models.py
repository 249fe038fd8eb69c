"""Orders, as a shop's export tells them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q


class Order(models.Model):
    """An order that was paid. An empty e-mail address: bought at the counter, nothing to mail."""

    number = models.CharField(max_length=40, unique=True)
    placed_at = models.DateTimeField()
    customer = models.CharField(max_length=200)
    # As the customer typed it: an import saves bad addresses too, only forms refuse them.
    email = models.EmailField("e-mail", blank=True)
    currency = models.CharField(max_length=3)
    total = models.DecimalField(max_digits=12, decimal_places=2)
    note = models.TextField(blank=True)
    receipt_sent_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering: ClassVar = ["number"]
        constraints: ClassVar = [
            models.CheckConstraint(name="shop_order_total", condition=Q(total__gte=0))
        ]

    def __str__(self) -> str:
        return self.number


class Line(models.Model):
    """One item of an order."""

    order = models.ForeignKey(Order, models.CASCADE, related_name="lines")
    item = models.CharField(max_length=200)
    quantity = models.PositiveIntegerField()
    price = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(name="shop_line_quantity", condition=Q(quantity__gte=1)),
            models.CheckConstraint(name="shop_line_price", condition=Q(price__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} × {self.item}"
