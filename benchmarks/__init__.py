"""Measurements that print a table and, as their last line, one JSON object: `python -m benchmarks.NAME`.

With `--record` the last line is also written to `results/NAME.json`, of which docs/results.md is made.
"""
