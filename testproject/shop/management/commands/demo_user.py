"""demo_user: make the superuser that the demonstration shows the admin with."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Make a superuser, or give the one of that name this password again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("password")

    def handle(self, *, username: str, password: str, **options: Any) -> None:
        user, created = User.objects.get_or_create(username=username)
        user.is_staff = user.is_superuser = user.is_active = True
        user.set_password(password)
        user.save()
        self.stdout.write(f"superuser {username!r} {'made' if created else 'was there already'}")
