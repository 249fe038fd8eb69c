"""correct_in_admin: what a person does about a dead receipt, through the admin's own pages."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.urls import reverse

from shop import counting
from shop.browser import Browser, Page, UnexpectedPage
from shop.models import Order


class Command(BaseCommand):
    help = "Log in to the admin, correct an order's e-mail address, requeue its dead receipt."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("number", help="The order's number.")
        parser.add_argument("email", help="The right address.")
        parser.add_argument("--username", required=True)
        parser.add_argument("--password", required=True)

    def handle(
        self, *, number: str, email: str, username: str, password: str, **options: Any
    ) -> None:
        order = Order.objects.filter(number=number).first()
        if order is None:
            raise CommandError(f"There must be an order {number}, and there is none.")
        found = [job for job, of in counting.dead_receipts() if of == order]
        if not found:
            self.stdout.write(f"{order} has no dead receipt: corrected in an earlier run")
            return
        browser = Browser()
        try:
            self._log_in(browser, username, password)
            self._correct(browser, order, email)
            self._requeue(browser, str(found[0].pk))
        except UnexpectedPage as error:
            raise CommandError(str(error)) from error

    def _log_in(self, browser: Browser, username: str, password: str) -> None:
        page = browser.open(reverse("admin:login"))
        page = browser.submit(page, "password", username=username, password=password)
        if page.path.startswith(reverse("admin:login")):
            raise UnexpectedPage(f"The admin must let {username!r} in, and it asks again.")

    def _correct(self, browser: Browser, order: Order, email: str) -> None:
        page = browser.open(reverse("admin:shop_order_change", args=[order.pk]))
        page = browser.submit(page, "email", email=email)
        self._tell(page)
        order.refresh_from_db()
        if order.email != email:
            raise UnexpectedPage(f"The admin must save {email!r}, the order has {order.email!r}.")

    def _requeue(self, browser: Browser, job_id: str) -> None:
        page = browser.open(reverse("admin:workqueue_deadjob_changelist"))
        page = browser.submit(page, "action", action="requeue", _selected_action=[job_id])
        self._tell(browser.submit(page, "confirmed"))

    def _tell(self, page: Page) -> None:
        for message in page.messages:
            self.stdout.write(f"the admin says: {' '.join(message.split())}")
