"""The directory of a run: who may write there, and what is written down.

In: what happens. Out: run.json, attempts.jsonl, metrics.jsonl, ranks/*.jsonl. Kept: all of these, across restarts.
Begin with `directory`; `records` are the metrics, `errors` what went wrong on which rank.
"""
