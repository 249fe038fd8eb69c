"""Contestants beside each other: interleaved, several times, medians and ratios."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence

from tests.benchmarks import trials
from tests.benchmarks.harness import say
from tests.benchmarks.peers import PEERS
from tests.benchmarks.trials import Figure

MAX_REPEAT = 7
SPREAD = 0.2

Trial = tuple[str, str]
"""A contestant and what is measured of it."""


def compare(wanted: Sequence[Trial], count: int, repeat: int) -> dict[Trial, float]:
    """Measure the *wanted* in turn, *repeat* times; say and return the median rates.

    The first is the reference of the ratios. While any spread is over 20 %, all go again. Peers
    that are not there are named and left out; what is asked of a slow one is said beside its rate.
    """
    wanted = [each for each in wanted if is_there(each[0])]
    found: dict[Trial, list[Figure]] = {each: [] for each in wanted}
    rounds = 0
    while rounds < repeat or (rounds < MAX_REPEAT and _is_wide(found)):
        rounds += 1
        for trial in wanted:
            found[trial].append(_measured(trial, count))
    rates = {trial: statistics.median(each.rate for each in found[trial]) for trial in wanted}
    reference = rates[wanted[0]]
    for trial, rate in rates.items():
        cpu = statistics.median(each.cpu_seconds / each.count for each in found[trial])
        server = statistics.median(each.server_seconds / each.count for each in found[trial])
        say(
            f"{' '.join(trial):38} {rate:10,.0f}/s  ratio {rate / reference:5.2f}  "
            f"CPU {1e6 * cpu:4.0f} + {1e6 * server:3.0f} µs  "
            f"spread {_spread(found[trial]):4.0%} of {rounds}, {found[trial][0].count:,} jobs"
        )
    return rates


@functools.cache
def is_there(contestant: str) -> bool:
    """Tell whether a contestant can be measured; say once a peer's version, or why not."""
    if contestant not in PEERS:
        return True
    peer = PEERS[contestant]
    if missing := peer.missing():
        say(f"{contestant} is left out: {missing}")
        return False
    say(f"beside {peer.package} {peer.version()}")
    return True


def _measured(trial: Trial, count: int) -> Figure:
    peer = PEERS.get(trial[0])
    return trials.run(Figure, *trial, count if peer is None else peer.bounded(count))


def _is_wide(found: dict[Trial, list[Figure]]) -> bool:
    return any(_spread(figures) > SPREAD for figures in found.values())


def _spread(figures: Sequence[Figure]) -> float:
    rates = [each.rate for each in figures]
    return (max(rates) - min(rates)) / statistics.median(rates)
