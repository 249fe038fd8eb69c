"""Celery on either side of the queue.

``celery_destination``: messages of the outbox for a Celery task of another service.
"""

from .destination import celery_destination

__all__ = ["celery_destination"]
