"""Writes orders.csv, the export that the demonstration reads; the same bytes every time.

What shops really export: names in many scripts, cells with commas, quotes and line ends, a BOM,
amounts and dates of several habits, orders twice, empty cells, bad addresses, broken rows.
"""  # noqa: INP001 - a script

import csv
import io
import random
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

HEADER = ["Order", "Date", "Customer", "Email", "Currency", "Quantity", "Item", "Price", "Total"]
HEADER += ["Note"]
FIRST_NUMBER, ORDER_COUNT = 1001, 320

CUSTOMERS = [
    "Zoë Müller-Lüdenscheidt", "François Œuvrard", "Łukasz Żółć", "Jiří Dvořák",
    "Þórunn Ægisdóttir", "Nguyễn Thị Minh Khai", "Özlem Çağlayan", "Siobhán O’Connor",
    "Ştefan Țepeș", "Ana Luísa Conceição",
    "Анна Каренина", "Богдан Ґжицький", "Димитър Пейчев", "Ђорђе Петровић", "Айгүл Өмірбекқызы",
    "Ελένη Παπαδοπούλου", "Γιώργος Ξενάκης", "فاطمة الزهراء", "محمد بن عبد الله", "شیرین یزدی",
    "שירה כהן־לוי", "王小明", "歐陽菲菲", "山田 太郎", "さくら ももこ", "カタカナ・スミス",
    "김민준", "สมชาย ใจดี", "आरती शर्मा", "தமிழ்ச்செல்வி", "Նարե Պետրոսյան", "ნინო ბერიძე", "አበበ ቢቂላ",
    'Robert "Bob" Smith', "Smith, John", "O'Brien & Sons, Ltd.", "J. R. R. T.", "x",
    "  Grace   Hopper ", "Null", "👩‍🚀 Valentina", "",
]  # fmt: skip
ITEMS = [
    ("Cup, white", "4.50"), ("Teapot 1,2 l", "39.90"), ('Monitor 27"', "1299.00"),
    ("Käsereibe", "12.95"), ("抹茶 100g", "18.40"), ("Самовар", "149.00"), ("Gift\ncard", "25.00"),
    ("ფინჯანი", "7.20"), ("Plate “Ωμέγα”", "9.99"), ("زعتر ٢٥٠ غ", "6.75"), ("Sample", "0.00"),
]  # fmt: skip
NOTES = [
    "", "", "", "", "", "Please ring twice.", "Leave it at the door,\nnot with the neighbour.",
    'The card should say: "Happy birthday, Ömer!"', "配達は午後にお願いします。", "=SUM(A1:A9)",
    "Спасибо!\n\nА. К.", "لا ترن الجرس", "<b>fragile</b> & heavy", "; DROP TABLE orders; --",
]  # fmt: skip
BAD_ADDRESSES = {
    1017: "ada.lovelace(at)example.org",
    1048: "olga@@example.org",
    1083: "kim@example..org",
    1121: "maria@example,org",
    1166: "no address",
    1181: "почта@example.org",
    1204: "@example.org",
    1259: "jürgen@",
    1302: "Li Wei <liwei@example.org>",
}
ODD_ADDRESSES = {
    1005: "info@bücher.example",
    1033: "first.last+shop@sub.example.co.uk",
    1077: "UPPER.CASE@EXAMPLE.ORG",
    1140: "o'brien@example.org",
}
WITHOUT_ADDRESS = {1012, 1040, 1069, 1099, 1130, 1158, 1187, 1215, 1246, 1277, 1290, 1311}
TWICE = {1003, 1017, 1025, 1054, 1090, 1111, 1139, 1170, 1199, 1230, 1260, 1319}
CENTS = Decimal("0.01")


def english(value: Decimal) -> str:
    return f"{value:,.2f}"


def plain(value: Decimal) -> str:
    return f"{value:.2f}"


def german(value: Decimal) -> str:
    return english(value).translate(str.maketrans(",.", ".,"))


def french(value: Decimal) -> str:
    return german(value).replace(".", "\N{NARROW NO-BREAK SPACE}")


def with_sign(value: Decimal) -> str:
    return f"€ {value:.2f}"


def arabic(value: Decimal) -> str:
    return plain(value).translate(str.maketrans("0123456789.", "٠١٢٣٤٥٦٧٨٩٫"))


AMOUNTS = [plain, plain, plain, english, german, french, with_sign, arabic]
DATES = ["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y"]


def make_order(number: int, chance: random.Random) -> list[list[str]]:
    """Return the rows of one order."""
    date = datetime(2026, 9, 1, 8) + timedelta(minutes=number * 37)  # noqa: DTZ001 - as exported
    email = (BAD_ADDRESSES | ODD_ADDRESSES).get(number, f"customer{number}@example.org")
    if number in WITHOUT_ADDRESS:
        email = ""
    items = [chance.choice(ITEMS) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
    quantities = [chance.choice([1, 1, 2, 3, 12]) for _ in items]
    write = chance.choice(AMOUNTS)
    total = sum(
        (Decimal(price) * n for (_, price), n in zip(items, quantities, strict=True)), Decimal(0)
    )
    rows = []
    for (item, price), quantity in zip(items, quantities, strict=True):
        rows.append([f"SO-{number}", *[""] * 4, str(quantity), item, write(Decimal(price)), "", ""])
    rows[0][1:5] = [
        date.strftime(chance.choice(DATES)),
        chance.choice(CUSTOMERS),
        email,
        chance.choice(["EUR", "EUR", "usd", "GBP", "PLN", "CNY"]),
    ]
    rows[0][8:] = [write(total.quantize(CENTS)), chance.choice(NOTES)]
    return rows


def broken_rows() -> list[list[list[str]]]:
    """Return orders that cannot be imported; what is amiss with most of them shows late."""

    def one(number: str, **cells: str) -> list[str]:
        row = dict(zip(HEADER, [number, "2026-11-02", "Test", "test@example.org"], strict=False))
        row |= {"Currency": "EUR", "Quantity": "2", "Item": "Cup, white", "Price": "4.50"}
        row |= {"Total": "9.00", "Note": "", **cells}
        return list(row.values())

    return [
        [one("SO-2001", Total="10.00")],
        [one("SO-2002", Quantity="0", Total="0.00")],
        [one("SO-2003", Quantity="two")],
        [one("SO-2004", Price="-4.50", Total="-9.00")],
        [one("SO-2005", Price="NaN")],
        [one("SO-2006", Price="1e1", Total="20.00")],
        [one("SO-2007", Date="31.02.2026")],
        [one("", Customer="Nobody")],
        [one("../SO-2008")],
        [[*one("SO-2009")[:7], " red", *one("SO-2009")[7:]]],
        [one("SO-2010"), one("SO-2010", Total="", Quantity="1.5")],
    ]


def make_export() -> str:
    """Return the whole export."""
    chance = random.Random(20261130)
    orders = [make_order(FIRST_NUMBER + n, chance) for n in range(ORDER_COUNT)]
    again = [order for order in orders if int(order[0][0][3:]) in TWICE]
    broken = broken_rows()
    chance.shuffle(again)
    for extra in (again, broken):
        for order in extra:
            orders.insert(chance.randrange(ORDER_COUNT // 2, len(orders)), order)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(HEADER)
    for order in orders:
        writer.writerows(order)
    return "\N{BYTE ORDER MARK}" + text.getvalue()


if __name__ == "__main__":
    Path(__file__).with_name("orders.csv").write_bytes(make_export().encode())
