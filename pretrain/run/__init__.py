"""The directory of a run: who may write there, and what is written down.

In: what happens. Out: run.json, attempts.jsonl, metrics.jsonl, ranks/*.jsonl. Kept: all of these, across restarts.
Begin with `directory`; `run_json` is its record, `settings` say where it is, `lock` holds it, `attempts` records and
reads how each start ended, `stop` hears Ctrl-C and SIGTERM, `launcher` is whom no rank outlives and whose variables say
where a rank is, `interval_schedule` says when something is to be done again, `records` writes and reads lines, and
`errors` are those that end a run.
"""
