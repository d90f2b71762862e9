"""The directory of a run: who may write there, and what is written down.

In: what happens. Out: run.json, attempts.jsonl, metrics.jsonl, ranks/*.jsonl. Kept: all of these, across restarts.
Begin with `directory`; `run_json` is its record, `settings` say where it is, `lock` holds it, `attempts` records and
reads how each start ended, `grace_period` is the time left after a SIGTERM, `interval_schedule` says when something is
due again, `records` writes and reads lines, `reader` reads a whole run, `console_numbers` has the numbers of a line of
progress, `versions` names the packages. Signals, launchers and errors are in `zymogen.processes`.
"""
