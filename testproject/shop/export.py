"""Reading a shop's export: what its rows mean, and which of them cannot be orders. Writes nothing.

One row an item. The first row of an order holds its total and its customer; the rows of its other
items follow with the same number and an empty total, as the large shop systems export them.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TextIO

COLUMNS = (
    "Order",
    "Date",
    "Customer",
    "Email",
    "Currency",
    "Quantity",
    "Item",
    "Price",
    "Total",
    "Note",
)
DATE_FORMATS = ("%Y-%m-%d %H:%M", "%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y")
# Also the name of a folder of receipts.
NUMBER = re.compile(r"#?[A-Za-z0-9][A-Za-z0-9._-]{0,38}")
AMOUNT = re.compile(r"-?\d[\d.,]*")
LARGEST_AMOUNT = Decimal("9999999999.99")
LARGEST_QUANTITY = 1_000_000


class BadExport(Exception):
    """The file as a whole is no export of orders."""


class BadRow(Exception):
    """A row cannot be an order, or an item of one."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the file, and the number of the line that it ends on."""

    line: int
    cells: dict[str, str]
    width: int

    def __getitem__(self, column: str) -> str:
        return self.cells[column].strip()


def read(file: TextIO) -> Iterator[list[Row]]:
    """Yield the rows of one order after the other. Raises BadExport for a file of another shape."""
    reader = csv.reader(file)
    header = next(reader, [])
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise BadExport(
            f"An export must have the columns {', '.join(COLUMNS)}; it lacks {', '.join(missing)}."
        )
    return grouped(_rows(reader, header))


def _rows(reader: Any, header: list[str]) -> Iterator[Row]:
    for cells in reader:
        if any(cell.strip() for cell in cells):
            padded = cells + [""] * (len(header) - len(cells))
            yield Row(reader.line_num, dict(zip(header, padded, strict=False)), len(cells))


def grouped(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield lists of rows: one that begins an order, and those of its further items."""
    group: list[Row] = []
    for row in rows:
        if group and row["Order"] == group[0]["Order"] and not row["Total"]:
            group.append(row)
            continue
        if group:
            yield group
        group = [row]
    if group:
        yield group


def order_fields(row: Row) -> dict[str, Any]:
    """Return the fields of the order that *row* begins. Raises BadRow for the first one amiss."""
    _check_width(row)
    if not NUMBER.fullmatch(row["Order"]):
        raise BadRow(f"Order must be letters and digits, got {row['Order']!r:.80}.")
    if not row["Total"]:
        raise BadRow("Total must be an amount, and no row of this order before has one.")
    currency = row["Currency"].upper()
    if not (len(currency) == 3 and currency.isascii() and currency.isalpha()):
        raise BadRow(f"Currency must be a code of three letters, got {row['Currency']!r:.80}.")
    return {
        "number": row["Order"],
        "placed_at": moment(row["Date"]),
        "customer": text(row, "Customer", 200) or "customer",
        "email": text(row, "Email", 254),
        "currency": currency,
        "total": amount(row, "Total"),
        "note": row["Note"],
    }


def line_fields(row: Row) -> dict[str, Any]:
    """Return the fields of the item in *row*. Raises BadRow for the first one amiss."""
    _check_width(row)
    return {
        "item": text(row, "Item", 200) or "item",
        "quantity": quantity(row),
        "price": amount(row, "Price"),
    }


def _check_width(row: Row) -> None:
    if row.width != len(row.cells):
        raise BadRow(f"A row must have {len(row.cells)} cells, got {row.width}.")


def text(row: Row, column: str, longest: int) -> str:
    """Return a cell as one line. Raises BadRow if it is longer than what is stored."""
    value = " ".join(row[column].split())
    if len(value) > longest:
        raise BadRow(f"{column} must have at most {longest} characters, got {len(value)}.")
    return value


def moment(written: str) -> datetime:
    """Return a date of any shape that the exports use, in UTC. Raises BadRow."""
    for shape in DATE_FORMATS:
        try:
            return datetime.strptime(written, shape).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise BadRow(f"Date must be like 2026-11-30 14:05, got {written!r:.80}.")


def quantity(row: Row) -> int:
    """Return a whole number; whether it is above 0 is the database's to say. Raises BadRow."""
    try:
        value = int(row["Quantity"])
    except ValueError:
        raise BadRow(f"Quantity must be a whole number, got {row['Quantity']!r:.80}.") from None
    if abs(value) > LARGEST_QUANTITY:
        raise BadRow(f"Quantity must be at most {LARGEST_QUANTITY}, got {value}.")
    return value


def amount(row: Row, column: str) -> Decimal:
    """Return the amount in a cell, to the cent; below 0 is the database's to refuse. Raises BadRow.

    Reads 1299.50, 1,299.50, 1.299,50, 1 299,50, € 1'299.5 and the digits of every script. A mark
    before three last digits separates thousands: no price is exported with three decimals.
    """
    written = row[column].replace("\N{ARABIC DECIMAL SEPARATOR}", ".")
    written = written.replace("\N{ARABIC THOUSANDS SEPARATOR}", ",")
    digits = "".join(c for c in written if unicodedata.category(c) not in {"Sc", "Zs"} and c != "'")
    if not AMOUNT.fullmatch(digits):
        raise BadRow(f"{column} must be an amount, got {row[column]!r:.80}.")
    whole, decimals = digits, ""
    mark = max(digits.rfind("."), digits.rfind(","))
    if mark >= 0 and len(digits) - mark - 1 != 3:
        whole, decimals = digits[:mark], digits[mark + 1 :]
    if len(decimals) > 2:
        raise BadRow(f"{column} must have at most two decimals, got {row[column]!r:.80}.")
    value = Decimal(f"{whole.replace(',', '').replace('.', '')}.{decimals or '0'}")
    if abs(value) > LARGEST_AMOUNT:
        raise BadRow(f"{column} must be at most {LARGEST_AMOUNT}, got {value}.")
    return value.quantize(Decimal("0.01"))
