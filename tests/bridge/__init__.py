"""Celery's own brokers and workers, beside the relay: what `contrib.celery` is for."""
