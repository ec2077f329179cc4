"""Measurements of the project, run as `python -m benchmarks.NAME`."""
