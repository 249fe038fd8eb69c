"""The migrations say what the models say, on every Django."""

import pytest
from django.core.management import call_command


@pytest.mark.django_db(databases=["default", "other"])
def test_models_have_no_change_that_lacks_a_migration(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("makemigrations", "workqueue", check=True, dry_run=True)
    assert "No changes detected" in capsys.readouterr().out
