"""The life of a job in plain Python: what every transition must do and answer.

Written from the table of transitions and its rules, not from the store: rows are in three dicts, by
id, and each method is one transition, in the order of a job's life. Where the store may choose
(which of two rows due at one moment a bounded batch takes), the method is told what was taken and
asserts that it may have been.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from django_workqueue.models import Result
from django_workqueue.store import ErrorRecord, Hold, NewJob
from tests.lifecycle_rows import NEW, UNHELD, after, batch, past, with_error
from tests.sound import FACTS, Row

LOST: Final = "lost"
"""What a settle answers to a claim that does not hold its job; the store raises LeaseLost."""

RESULT_FACTS: Final = FACTS & {field.attname for field in Result._meta.fields}
Swept = tuple[str, str | None]
"""Where a sweep left a job, and its reason of death."""


class Model:
    """Every job there is, as it should be."""

    def __init__(self) -> None:
        self.live: dict[uuid.UUID, Row] = {}
        self.dead: dict[uuid.UUID, Row] = {}
        self.finished: dict[uuid.UUID, Row] = {}
        self.paused_until: dict[str, datetime | None] = {}

    def tables(self) -> dict[str, dict[uuid.UUID, Row]]:
        return {"live": self.live, "dead": self.dead, "finished": self.finished}

    def where(self, **columns: Any) -> list[Row]:
        """Return the live rows with these values."""
        return [
            row
            for row in self.live.values()
            if all(row[name] == value for name, value in columns.items())
        ]

    # insert

    def insert(self, jobs: Iterable[NewJob], now: datetime) -> list[uuid.UUID]:
        """The first of two jobs with one key is written, the other is left out."""
        return [job.id for job in jobs if self._insert(job, now)]

    def _insert(self, job: NewJob, now: datetime) -> bool:
        due = job.run_after or after(now, job.delay_seconds)
        row = {name: getattr(job, name) for name in FACTS if hasattr(job, name)} | NEW
        row |= {
            "payload": json.loads(job.payload),
            "headers": json.loads(job.headers),
            "rank": -job.priority,
            "state": "scheduled" if job.run_after or job.delay_seconds > 0 else "ready",
            "fence": 0,
            "enqueued_at": now,
            "run_after": due,
            "expires_at": job.expires_seconds and after(due, job.expires_seconds),
            "worker_ids": [],
            "errors": [],
            "progress": None,
            "unique_key": job.unique_key or "",
            "unique_while": job.unique_while if job.unique_key is not None else "",
            "constrains": job.unique_key is not None,
        }
        if row["constrains"] and self.holder_of_key(row) is not None:
            return False
        self.live[job.id] = row
        return True

    def holder_of_key(self, row: Row) -> uuid.UUID | None:
        """Return the live job that holds the key of *row*: within its queue and task."""
        key = {name: row[name] for name in ("queue_name", "task", "unique_key")}
        holders = self.where(constrains=True, **key)
        assert len(holders) <= 1, "two live jobs hold one unique key"
        return holders[0]["id"] if holders else None

    # promote, unhold, claim

    def promote(self, limit: int, now: datetime, taken: Collection[uuid.UUID]) -> None:
        due = [row for row in self.where(state="scheduled") if past(row["run_after"], now)]
        for row in batch(due, "run_after", limit, taken):
            row["state"] = "ready"

    def unhold(self, reason: str, tasks: Collection[str], now: datetime) -> int:
        held = self.where(state="held", held_reason=reason)
        due = [row for row in held if row["task"] in tasks and past(row["run_after"], now)]
        for row in due:
            row |= {"state": "ready", "held_reason": ""}
        return len(due)

    def hold_ready(self, tasks: Collection[str], delay_seconds: float, now: datetime) -> int:
        """Hold, as unknown, what nobody here can run before anybody is charged for it."""
        ready = [row for row in self.where(state="ready") if row["task"] in tasks]
        for row in ready:
            row |= {
                "state": "held",
                "held_reason": "unknown",
                "run_after": after(now, delay_seconds),
                "unknown_since": row["unknown_since"] or now,
            }
        return len(ready)

    def open(self, queue_name: str, now: datetime) -> bool:
        """Tell whether no pause of the queue lasts; it is over at its end."""
        until = self.paused_until.get(queue_name)
        return until is None or past(until, now)

    def claim(
        self,
        may: Callable[[Row], bool],
        hold: Row,
        limit: int,
        lease_seconds: float,
        now: datetime,
    ) -> list[Row]:
        """Take rows for which *may* holds, by priority, run_after and id; *hold*: who and token."""
        free = [
            row
            for row in self.where(state="ready")
            if may(row)
            and self.open(row["queue_name"], now)
            and row["attempt"] < row["max_attempts"]
            and not past(row["expires_at"], now)
        ]
        free.sort(key=lambda row: (row["rank"], row["run_after"], row["id"]))
        for row in free[:limit]:
            row |= {
                "state": "running",
                **hold,
                "lease_expires_at": after(now, lease_seconds),
                "claimed_at": now,
                "started_at": None,
                "attempt": row["attempt"] + 1,
                "fence": row["fence"] + 1,
                # The key of scope "queued" is given up here and by no other transition.
                "constrains": row["constrains"] and row["unique_while"] == "live",
            }
        return free[:limit]

    # What a holder does: nothing without the current token (I3)

    def held(self, hold: Hold) -> Row | None:
        row = self.live.get(hold[0])
        return row if row and row["state"] == "running" and row["token"] == hold[1] else None

    def extend(
        self, holds: Iterable[Hold], lease_seconds: float, now: datetime
    ) -> dict[Hold, bool]:
        """A late holder whose job nobody took still holds it."""
        rows = [row for hold in holds if (row := self.held(hold))]
        for row in rows:
            row["lease_expires_at"] = after(now, lease_seconds)
        return {(row["id"], row["token"]): row["cancel_asked_at"] is not None for row in rows}

    def mark_started(self, holds: Iterable[Hold], now: datetime) -> set[Hold]:
        rows = [row for hold in holds if (row := self.held(hold))]
        for row in rows:
            row["started_at"] = now
        return {(row["id"], row["token"]) for row in rows}

    def ack(self, acks: Mapping[Hold, Row], now: datetime) -> set[Hold]:
        """*acks*: value and started_at of each. An ack wins over a cancel that was asked."""
        settled = {hold for hold in acks if self.held(hold)}
        for hold in settled:
            row = self.live[hold[0]]
            row["worker_ids"] = [*row["worker_ids"], row["worker_id"]]
            self._finish(row, now, outcome="succeeded", token=hold[1], **acks[hold])
        return settled

    def retry(self, hold: Hold, delay_seconds: float, error: ErrorRecord, now: datetime) -> str:
        row = self.held(hold)
        if row is None:
            return LOST
        if row["attempt"] >= row["max_attempts"]:
            return self.bury(hold, "exhausted", error, now)
        self._charge(row, error)
        due = after(now, delay_seconds)
        ended = {"unknown_since": None, "suspect": False}
        return self._wait(row, now, "scheduled", run_after=due, **ended)

    def bury(self, hold: Hold, reason: str, error: ErrorRecord, now: datetime) -> str:
        row = self.held(hold)
        if row is None:
            return LOST
        self._charge(row, error)
        return self._die(row | {"started_at": error.started}, reason, now)[0]

    def release(self, hold: Hold, delay_seconds: float, now: datetime) -> str:
        row = self.held(hold)
        if row is None:
            return LOST
        row["attempt"] -= 1
        if not delay_seconds:
            return self._wait(row, now, "ready")
        return self._wait(row, now, "scheduled", run_after=after(now, delay_seconds))

    def hold(
        self, hold: Hold, reason: str, delay_seconds: float, error: ErrorRecord, now: datetime
    ) -> str:
        row = self.held(hold)
        if row is None:
            return LOST
        since = row["unknown_since"] or (now if reason == "unknown" else None)
        row |= {"attempt": row["attempt"] - 1, "errors": with_error(row, error, replace=True)}
        return self._wait(
            row,
            now,
            "held",
            run_after=after(now, delay_seconds),
            held_reason=reason,
            unknown_since=since,
        )

    def release_strays(self, worker_id: str, known: Collection[Hold], now: datetime) -> int:
        mine = self.where(state="running", worker_id=worker_id)
        strays = [row for row in mine if (row["id"], row["token"]) not in known]
        for row in strays:
            row["attempt"] -= 1
            self._wait(row, now, "ready")
        return len(strays)

    # Sweeps

    def lapsed(self, now: datetime) -> list[Row]:
        return [row for row in self.where(state="running") if past(row["lease_expires_at"], now)]

    def expired(self, now: datetime) -> list[Row]:
        """What is past its end and under no living lease: a lapsed running job is no zombie."""
        return [
            row
            for row in self.live.values()
            if past(row["expires_at"], now)
            and (row["state"] != "running" or past(row["lease_expires_at"], now))
        ]

    def ending(self, now: datetime) -> list[Row]:
        """What is past its end, under a living lease too, or held: where a burial may go wrong."""
        over = [row for row in self.live.values() if past(row["expires_at"], now)]
        return over + self.where(state="held")

    def spent(self, now: datetime) -> list[Row]:
        """Ready rows that no claim may return, in queues that are open."""
        return [
            row
            for row in self.where(state="ready")
            if row["attempt"] >= row["max_attempts"] and self.open(row["queue_name"], now)
        ]

    def unknown(self, grace_seconds: float, now: datetime) -> list[Row]:
        held = self.where(state="held", held_reason="unknown")
        return [row for row in held if past(row["unknown_since"], after(now, -grace_seconds))]

    def reclaim(self, row: Row, now: datetime) -> Swept:
        if row["max_attempts"] == 1 and row["started_at"] is None:
            # It never ran, and will be run at most once.
            row["attempt"] -= 1
            return self._wait(row, now, "ready"), None
        self._lose(row)
        if row["attempt"] >= row["max_attempts"]:
            return self._die(row, "lost", now)
        row |= {"suspect": True, "deaths": row["deaths"] + 1}
        return self._wait(row, now, "ready"), None

    def expire(self, row: Row, now: datetime) -> Swept:
        if row["state"] == "running":
            self._lose(row)
        return self._die(row, "expired", now)

    def bury_spent(self, row: Row, now: datetime) -> Swept:
        return self._die(row, "exhausted", now)

    def bury_unknown(self, row: Row, now: datetime) -> Swept:
        last = row["errors"][-1]["outcome"] if row["errors"] else ""
        return self._die(row, last if last == "bad_arguments" else "unknown_task", now)

    def old(self, table: str, ttl_seconds: float, now: datetime) -> set[uuid.UUID]:
        """Return the ids of *table* past their retention."""
        column, since = ("died_at", ttl_seconds) if table == "dead" else ("expires_at", 0.0)
        rows = self.tables()[table].values()
        return {row["id"] for row in rows if past(row[column], after(now, -since))}

    # What people ask for

    def cancel(self, job_id: uuid.UUID, now: datetime) -> str:
        row = self.live.get(job_id)
        if row is None or row["cancel_asked_at"] is not None:
            return "nothing"
        if row["state"] == "running":
            row["cancel_asked_at"] = now
            return "asked"
        self._finish(row, now, outcome="cancelled")
        return "cancelled"

    def requeue(self, job_id: uuid.UUID, now: datetime) -> bool | uuid.UUID:
        """Return whether it was dead, or the id of the job that holds its key.

        A key of scope "queued" was given up at the first claim, if there was one, for good.
        """
        if job_id not in self.dead:
            return False
        dead = self.dead[job_id]
        keyed = dead["unique_while"] == "live" or bool(dead["unique_while"] and not dead["fence"])
        holder = self.holder_of_key(dead) if keyed else None
        if holder is not None:
            return holder
        facts = {name: value for name, value in self.dead.pop(job_id).items() if name in FACTS}
        again = {"state": "ready", "run_after": now, "expires_at": None, "constrains": keyed}
        self.live[job_id] = facts | NEW | again
        return True

    def discard(self, job_id: uuid.UUID) -> bool:
        return self.dead.pop(job_id, None) is not None

    # The ends of a stay: a cancel that was asked turns every one but ack into finished (cancelled)

    def _charge(self, row: Row, error: ErrorRecord | Row) -> None:
        """Keep a start on record. One that was given back leaves nothing behind."""
        row["errors"] = with_error(row, error)
        row["worker_ids"] = [*row["worker_ids"], row["worker_id"]]

    def _lose(self, row: Row) -> None:
        lost = {
            "attempt": row["attempt"],
            "worker": row["worker_id"],
            "started": (row["started_at"] or row["claimed_at"]).isoformat(),
            "ended": row["lease_expires_at"].isoformat(),
            "outcome": "lost",
        }
        self._charge(row, lost)

    def _wait(self, row: Row, now: datetime, state: str, **changes: Any) -> str:
        if row["cancel_asked_at"] is not None:
            self._finish(row, now, outcome="cancelled")
            return "cancelled"
        row |= {"state": state, **UNHELD, **changes}
        return state

    def _die(self, row: Row, reason: str, now: datetime) -> Swept:
        if row["cancel_asked_at"] is not None:
            self._finish(row, now, outcome="cancelled")
            return "cancelled", None
        del self.live[row["id"]]
        if not row["dead_letter"]:
            return "dropped", reason
        facts = {name: value for name, value in row.items() if name in FACTS}
        self.dead[row["id"]] = facts | {"died_at": now, "reason": reason}
        return "dead", reason

    def _finish(self, row: Row, now: datetime, **ends: Any) -> None:
        del self.live[row["id"]]
        ttl = row["result_ttl"]
        if ttl == 0:
            return
        facts = {name: value for name, value in row.items() if name in RESULT_FACTS}
        end = {
            "value": None,
            "started_at": None,
            "token": None,
            "attempts": row["attempt"],
            "finished_at": now,
            "expires_at": None if ttl is None else after(now, ttl),
        }
        self.finished[row["id"]] = facts | end | ends
