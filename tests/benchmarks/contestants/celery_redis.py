"""Celery with a Redis of its own, on that server's defaults: what `delay` sends is in memory.

No result backend. The worker is a process of its own, with a child for each core, a longer
prefetch, as Celery's documentation has it for short tasks, and no gossip between workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from celery import Celery
from redis import Redis

from tests.benchmarks.harness import cpu_seconds, session
from tests.benchmarks.trials import Figure, cpu_seconds_here
from tests.bridge.servers import OwnRedis
from tests.processes import ROOT, wait_until

URL: Final = "WORKQUEUE_BENCH_REDIS_URL"
"""Where a worker finds the server of its trial."""

ENDED: Final = "ended"
"""A list in Redis: the moment of each task, by the clock that all processes of a machine share."""

PREFETCH: Final = 64

app = Celery("celery_redis", broker=os.environ.get(URL), set_as_current=False)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=PREFETCH)
redis = Redis.from_url(os.environ[URL]) if URL in os.environ else None


@app.task(name="nothing")
def nothing() -> None:
    """Note the moment in Redis, for 30 µs: nothing else tells when the last of all has run."""
    assert redis is not None
    redis.rpush(ENDED, time.monotonic())


class DefaultRedis(OwnRedis):
    def options(self) -> list[str]:
        return []

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]


@contextlib.contextmanager
def server() -> Iterator[DefaultRedis]:
    """Start an empty server for this trial, which *app* and the workers it starts use."""
    with tempfile.TemporaryDirectory(prefix="wq-redis-") as folder:
        started = DefaultRedis(Path(folder, "redis"))
        try:
            os.environ[URL] = started.url
            app.conf.update(broker_url=started.url)
            yield started
        finally:
            started.kill()


@contextlib.contextmanager
def worker(folder: Path) -> Iterator[int]:
    """Start a worker; yield its process, which is killed at the end with its children.

    Its temporary files are in *folder*, since it cannot remove them then.
    """
    options = ("--loglevel=ERROR", "--without-gossip", "--without-mingle")
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "celery", "-A", __name__, "worker", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def enqueue(count: int) -> Figure:
    """Call ``delay``, one job after another."""
    with server() as redis_server:
        nothing.delay()
        at_server, cpu = cpu_seconds(redis_server.pids), cpu_seconds_here()
        began = time.perf_counter()
        for _ in range(count):
            nothing.delay()
        seconds, used = time.perf_counter() - began, cpu_seconds_here() - cpu
        return Figure(count, seconds, used, cpu_seconds(redis_server.pids) - at_server)


def drain_without_results(count: int) -> Figure:
    """Run all jobs; from the first task to the last."""
    with server() as redis_server:
        for _ in range(count):
            nothing.delay()
        client = Redis.from_url(redis_server.url)
        with worker(redis_server.folder) as pid:
            wait_until(lambda: client.llen(ENDED), "the first task")
            at_server, cpu = cpu_seconds(redis_server.pids), cpu_seconds(session(pid))
            wait_until(lambda: client.llen(ENDED) == count, "the last task")
            used = cpu_seconds(session(pid)) - cpu
            at_server = cpu_seconds(redis_server.pids) - at_server
        moments = [float(each) for each in client.lrange(ENDED, 0, -1)]
        return Figure(count, max(moments) - min(moments), used, at_server)
