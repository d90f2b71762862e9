"""Measurements that print a table and, as their last line, one JSON object: `python -m benchmarks.NAME`."""
