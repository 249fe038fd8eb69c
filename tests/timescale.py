"""The time scale of tests that run real workers: production's proportions, in about a second.

Everything that waits takes its numbers from here, so that a slow machine is served in one place:
set WORKQUEUE_TEST_TIMESCALE=3 and leases, ticks and patience are all three times as long.
"""

import os

SCALE = float(os.environ.get("WORKQUEUE_TEST_TIMESCALE", "1"))

LEASE_SECONDS = 1.5 * SCALE
SWEEP_SECONDS = 0.5 * SCALE
TICK_SECONDS = 1.0 * SCALE
POLL_SECONDS = 0.1 * SCALE
GRACE_SECONDS = 2.0 * SCALE

RECLAIM_SECONDS = LEASE_SECONDS + SWEEP_SECONDS
"""The longest that a job of a dead worker may stay unclaimable (G3)."""

PATIENCE_SECONDS = 60.0 * SCALE
"""How long a test waits for an event before it fails: a bound on failure, never on success."""
