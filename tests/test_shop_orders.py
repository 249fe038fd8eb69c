"""The main promise on real input: an order and its receipt's job, together or not at all (G1)."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shopping import VENDORS, Shop, open_shop, outputs
from tests.timescale import PATIENCE_SECONDS

ORDER_COUNT = 1_000
IMPORTER_COUNT = 8
HEADER = "Order,Date,Customer,Email,Currency,Quantity,Item,Price,Total,Note".split(",")  # noqa: SIM905 - as a file has it

pytestmark = [pytest.mark.vendor(*VENDORS), pytest.mark.timeout(PATIENCE_SECONDS * 12)]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with open_shop(tmp_path) as opened:
        yield opened


def is_good(number: int) -> bool:
    """Tell whether the order is to be committed: seven in ten are."""
    return number % 10 not in {2, 5, 8}


def write_part(path: Path, numbers: range) -> None:
    """Write orders of two items each; one that is not good has a total that its items belie."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(HEADER)
        for number in numbers:
            total = "7.50" if is_good(number) else "7.51"
            address = f"customer{number}@example.org"
            first = [f"N{number:04}", "2026-11-30", f"Zoë {number}", address, "EUR"]
            rows.writerow([*first, "1", "Cup", "4.50", total, ""])
            rows.writerow([f"N{number:04}", "", "", "", "", "2", "Spoon", "1.50", "", ""])


def test_committed_orders_have_one_receipt_and_rolled_back_ones_none(shop: Shop) -> None:
    part = ORDER_COUNT // IMPORTER_COUNT
    paths = [shop.folder / f"part-{n}.csv" for n in range(IMPORTER_COUNT)]
    for n, path in enumerate(paths):
        write_part(path, range(n * part, (n + 1) * part))

    with shop.workers(2):
        reports = outputs([shop.start("import_orders", str(path)) for path in paths])
        shop.manage("shop_report", f"--wait={PATIENCE_SECONDS * 6}")

    good = {f"N{n:04}" for n in range(ORDER_COUNT) if is_good(n)}
    bad = {f"N{n:04}" for n in range(ORDER_COUNT) if not is_good(n)}
    assert (len(good), len(bad)) == (700, 300)
    # The control: every bad order had been saved, with its job, when it was taken back.
    assert set(re.findall(r"order '(N\d+)': Total must be", "".join(reports))) == bad
    rolled_back = re.findall(r"rolled back, with job (\S+)", "".join(reports))
    assert len(set(rolled_back)) == len(bad)

    assert set(shop.ask("list(Order.objects.values_list('number', flat=True))")) == good
    receipts = shop.receipts()
    assert set(receipts) == good
    for number, files in receipts.items():
        assert len(files) == 1, number
        assert files[0].count("Message-ID:") == 1, number
        assert f"Your receipt for order {number}" in files[0]

    finished, dead, live = shop.ask(
        "[list(model.objects.values_list('pk', flat=True)) for model in (Result, DeadJob, LiveJob)]"
    )
    assert (len(finished), dead, live) == (len(good), [], [])
    assert not set(rolled_back) & set(finished)
