"""The tests' own machinery: the server that was asked for answers, and nothing outlives a run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connections

from tests import services
from tests.timescale import PATIENCE_SECONDS

ROOT = Path(__file__).parent.parent


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("alias", ["default", "other"])
def test_database_answers_under_the_name_of_this_run(alias: str) -> None:
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    if "WORKQUEUE_TEST_DATABASE_URL" not in os.environ:
        wanted = os.environ.get("WORKQUEUE_TEST_DATABASE", "sqlite")
        if alias == "other":
            wanted = os.environ.get("WORKQUEUE_TEST_OTHER_DATABASE", wanted)
        assert connection.vendor == wanted.replace("mariadb", "mysql")
    assert connection.settings_dict["NAME"] == settings.DATABASES[alias]["TEST"]["NAME"]


def test_child_process_meets_the_databases_of_its_parent() -> None:
    code = "from tests.settings import DATABASES; print([d['NAME'] for d in DATABASES.values()])"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [database["TEST"]["NAME"] for database in settings.DATABASES.values()]
    assert child.stdout.strip() == str(names)


def test_folder_of_a_killed_run_goes() -> None:
    code = "from tests import services; print(services.sqlite_settings()['NAME'], flush=True)"
    environment = dict(os.environ)
    environment.pop("WORKQUEUE_TEST_SQLITE_FOLDER", None)
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; import time; time.sleep(600)"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        assert folder.is_dir()
        child.kill()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.02)


def test_missing_service_skips_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKQUEUE_REQUIRE_SERVICES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such server"):
        services.skip_or_fail(services.ServiceMissing("no such server"))


def test_missing_service_fails_where_services_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKQUEUE_REQUIRE_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="no such server"):
        services.skip_or_fail(services.ServiceMissing("no such server"))


def test_folder_without_postgresql_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PG_BINDIR", str(tmp_path))
    with pytest.raises(services.ServiceMissing) as caught:
        services.postgresql_binaries()
    assert (
        str(caught.value) == f"PG_BINDIR must be a folder with pg_ctl in it, got {str(tmp_path)!r}."
    )
