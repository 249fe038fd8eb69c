"""For a project's own tests: run what is due, inside the test's transaction and in its thread.

class BuyTests(TestCase):
    def test_receipt_is_sent(self):
        buy(order)
        assert_enqueued(send_receipt, args=[order.pk])
        run_jobs()
        self.assertEqual(len(mail.outbox), 1)
"""

from .asserting import assert_enqueued
from .delivering import deliver_outbox
from .firing import fire_schedules
from .moving_clock import MovedClock, moved_clock
from .running import run_jobs

__all__ = [
    "MovedClock",
    "assert_enqueued",
    "deliver_outbox",
    "fire_schedules",
    "moved_clock",
    "run_jobs",
]
