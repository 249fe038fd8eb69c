"""What the promises' tests share with the crash tests."""

from tests.crash.conftest import fleet, ledger, store

__all__ = ["fleet", "ledger", "store"]
