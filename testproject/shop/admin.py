from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from .models import Line, Order

if TYPE_CHECKING:
    LineInlineBase = admin.TabularInline[Line, Order]
    OrderAdminBase = admin.ModelAdmin[Order]
else:
    # Generic for type checkers only.
    LineInlineBase = admin.TabularInline
    OrderAdminBase = admin.ModelAdmin


class LineInline(LineInlineBase):
    model = Line
    extra = 0


@admin.register(Order)
class OrderAdmin(OrderAdminBase):
    list_display = ("number", "customer", "email", "total", "currency", "receipt_sent_at")
    list_filter = (("receipt_sent_at", admin.EmptyFieldListFilter), "currency")
    search_fields = ("number", "customer", "email")
    readonly_fields = ("receipt_sent_at",)
    inlines = (LineInline,)
