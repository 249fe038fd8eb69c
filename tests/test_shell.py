"""The tests' own machinery: the server that was asked for is the one that answers."""

import pytest
from django.conf import settings
from django.db import connections
from environ import Env


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("alias", ["default", "other"])
def test_database_answers_under_the_name_of_this_run(alias: str) -> None:
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    wanted = Env().str("WORKQUEUE_TEST_DATABASE", "sqlite").replace("mariadb", "mysql")
    assert connection.vendor == wanted
    assert connection.settings_dict["NAME"] == settings.DATABASES[alias]["TEST"]["NAME"]
