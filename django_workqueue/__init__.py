"""Background jobs that live in the database the project already has."""

__version__ = "0.1.0"
