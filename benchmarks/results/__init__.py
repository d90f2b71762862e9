"""Measured results: a JSON file per benchmark or subject, and docs/results.md, which is made of them.

In: last lines of benchmarks (`record`), and claims that are written by hand. Out: docs/results.md, by
`python -m benchmarks.results`. Kept: `*.json`, each `{"claims": [...], "runs": [...]}`. Begin with `__main__`.
"""
