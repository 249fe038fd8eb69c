"""The schedules of the tests' app: none that ticks while tests run."""

from django_workqueue.schedules import schedule

from .tasks import add

schedule("yearly-sum", add, cron="0 0 1 1 *", timezone="UTC", args=(1,), enabled=False)
