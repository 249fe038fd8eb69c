from django.apps import AppConfig


class BeatConfig(AppConfig):
    name = "tests.beat"
    label = "django_celery_beat"
