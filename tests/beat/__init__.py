"""django-celery-beat's tables, as its models have them: the package knows no Django above 5.2."""
