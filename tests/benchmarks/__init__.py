"""Figures: each module is a command, `python -m tests.benchmarks.NAME --help`; none is a test."""
