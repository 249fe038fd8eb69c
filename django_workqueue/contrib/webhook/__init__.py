"""A destination that POSTs messages, signed by the Standard Webhooks convention.

order_events = webhook_destination(
    "order-events", url="https://example.com/hooks/orders", secret="orders"
)
order_events.publish({"type": "order.paid", "order": order.pk}, key=str(order.pk))
"""

from ...exceptions import WebhookFailed
from .destination import webhook_destination

__all__ = ["WebhookFailed", "webhook_destination"]
