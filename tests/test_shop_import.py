"""Reading a shop's export: every habit of writing it, and every row that cannot be an order."""

import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from testproject import make_orders
from testproject.shop import export
from tests.shopping import PROJECT, VENDORS, Shop, open_shop
from tests.timescale import PATIENCE_SECONDS

EXPORT = PROJECT / "orders.csv"
HEADER = ",".join(export.COLUMNS)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with open_shop(tmp_path) as opened:
        yield opened


def row(**cells: str) -> export.Row:
    good = {"Order": "A-1", "Date": "2026-11-30", "Currency": "EUR", "Quantity": "1"}
    good |= {"Item": "Cup", "Price": "4.50", "Total": "4.50"}
    all_cells = dict.fromkeys(export.COLUMNS, "") | good | cells
    return export.Row(2, all_cells, len(all_cells))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1299.50", "1299.50"),
        ("1,299.50", "1299.50"),
        ("1.299,50", "1299.50"),
        ("1 299,50", "1299.50"),
        ("1\N{NARROW NO-BREAK SPACE}299,5", "1299.50"),
        ("1'299.50", "1299.50"),
        ("€ 1299.5", "1299.50"),
        ("1299 ¥", "1299.00"),
        ("1,299", "1299.00"),
        ("1.299.000", "1299000.00"),
        ("٣٩٫٩٠", "39.90"),
        ("१२.५०", "12.50"),
        ("0", "0.00"),
        ("-4.50", "-4.50"),
    ],
)
def test_amount_of_every_habit_is_read(written: str, meant: str) -> None:
    assert export.amount(row(Price=written), "Price") == Decimal(meant)


@pytest.mark.parametrize(
    "written",
    ["", "NaN", "1e1", "four", "1.2345", "--1", "1.-5", "Infinity", "99999999999", "0x10"],
)
def test_what_is_no_amount_is_refused(written: str) -> None:
    with pytest.raises(export.BadRow, match=r"^Price must "):
        export.amount(row(Price=written), "Price")


@pytest.mark.parametrize("written", ["2026-11-30 14:05", "2026-11-30", "30.11.2026", "11/30/2026"])
def test_date_of_every_habit_is_read(written: str) -> None:
    assert export.moment(written).replace(hour=0, minute=0) == datetime(2026, 11, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"Order": ""}, "Order must be letters and digits, got ''."),
        ({"Order": "../A-1"}, "Order must be letters and digits, got '../A-1'."),
        ({"Date": "31.02.2026"}, "Date must be like 2026-11-30 14:05, got '31.02.2026'."),
        ({"Currency": "€"}, "Currency must be a code of three letters, got '€'."),
        ({"Customer": "x" * 201}, "Customer must have at most 200 characters, got 201."),
        ({"Total": ""}, "Total must be an amount, and no row of this order before has one."),
    ],
)
def test_row_that_cannot_be_an_order_says_why(cells: dict[str, str], message: str) -> None:
    with pytest.raises(export.BadRow, match=f"^{re.escape(message)}$"):
        export.order_fields(row(**cells))


def test_rows_of_further_items_belong_to_the_order_before() -> None:
    text = f"{HEADER}\nA,,,,,1,Cup,1,3,\nA,,,,,1,Pot,2,,\n\nB,,,,,1,Cup,1,1,\nB,,,,,1,Cup,1,1,\n"
    groups = [[each["Item"] for each in rows] for rows in export.read(io.StringIO(text))]
    assert groups == [["Cup", "Pot"], ["Cup"], ["Cup"]]


def test_shifted_row_is_refused() -> None:
    (rows,) = export.read(io.StringIO(f"{HEADER}\nA,2026-11-30,,,EUR,1,Cup,4,50,4,50,\n"))
    with pytest.raises(export.BadRow, match=r"^A row must have 10 cells, got 12\.$"):
        export.order_fields(rows[0])


def test_export_is_what_its_generator_writes() -> None:
    assert EXPORT.read_bytes() == make_orders.make_export().encode()


def test_export_has_what_real_ones_have() -> None:
    text = EXPORT.read_bytes().decode()
    assert text.startswith("\N{BYTE ORDER MARK}")
    assert "\r\n" in text
    assert ",\nnot with" in text  # a line end inside a cell
    for script in ("Łukasz", "Анна", "Ελένη", "فاطمة", "王小明", "山田", "김민준"):
        assert script in text


@pytest.mark.vendor(*VENDORS)
@pytest.mark.timeout(PATIENCE_SECONDS * 9)
def test_second_import_saves_and_enqueues_nothing(shop: Shop) -> None:
    first = shop.manage("import_orders", str(EXPORT))
    assert first.splitlines()[-1] == (
        "320 orders saved, 308 of them with a receipt to mail; 12 were there already; "
        "11 refused, 6 of them rolled back together with their job"
    )
    before = shop.ask("[Order.objects.count(), LiveJob.objects.count()]")
    assert before == [320, 308]
    second = shop.manage("import_orders", str(EXPORT))
    assert second.splitlines()[-1].startswith(
        "0 orders saved, 0 of them with a receipt to mail; 332 were"
    )
    assert shop.ask("[Order.objects.count(), LiveJob.objects.count()]") == before


@pytest.mark.vendor("sqlite")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Order,Total\nA,1\n", "it lacks Date, Customer"),
        ("Order\nZoë\n".encode("latin-1"), "'utf-8' codec can't decode"),
        (None, "No such file"),
    ],
)
def test_file_that_is_no_export_is_one_line(
    shop: Shop, content: bytes | None, message: str
) -> None:
    path = shop.folder / "export.csv"
    if content is not None:
        path.write_bytes(content)
    with shop.start("import_orders", str(path)) as process:
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert output.startswith("CommandError: ")
    assert len(output.splitlines()) == 1
    assert message in output
