from django.contrib import admin

from .models import Line, Order


class LineInline(admin.TabularInline):
    model = Line
    extra = 0


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("number", "customer", "email", "total", "currency", "receipt_sent_at")
    list_filter = (("receipt_sent_at", admin.EmptyFieldListFilter), "currency")
    search_fields = ("number", "customer", "email")
    readonly_fields = ("receipt_sent_at",)
    inlines = (LineInline,)
