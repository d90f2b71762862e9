"""Kill runs until a ledger has as many kills as asked for.

    make chaos KILLS=1000 SEED=0

In: numbers of kills and of the campaign. Out: a line for each run, and one JSON object at the end; the exit status is 1
where a run did not end as the uninterrupted one. Kept: `runs/chaos/`, with the ledger, so that a second call continues
where the first was interrupted; a run that ended otherwise stays there, with what its processes printed.
"""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

from support.chaos.campaign import Campaign, Ledger, continued
from support.forgotten_runs import measure_peak_once
from support.jobs.run_of_seconds import small_families, write_recipe_of_seconds
from support.places import ROOT

ENGINES = ("ddp", "fsdp2", "zero2")
TOKENS = 150_000
"""About 200 steps, which some forty kills end."""


def main() -> int:
    """Kill; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the campaign; another one kills at other times")
    parser.add_argument("--engine", choices=ENGINES, default="ddp")
    parser.add_argument("--ranks", type=int, nargs="+", default=(2, 3), help="worlds that take turns")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/chaos", help="for runs and the ledger")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="length of each run; the same for one ledger")
    options = parser.parse_args()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if options.engine.startswith("zero"):
        importlib.import_module("deepspeed")
    folder = options.folder
    (folder / "families").mkdir(parents=True, exist_ok=True)
    recipe = write_recipe_of_seconds(folder, *small_families(folder / "families"))
    measure_peak_once()
    campaign = Campaign(folder, recipe, options.tokens)
    worlds = [(options.engine, ranks) for ranks in options.ranks]
    ledger = Ledger(folder / "ledger.jsonl", options.seed, options.engine)
    for found in continued(ledger, campaign, worlds, options.kills):
        print(found, flush=True)
    entries = ledger.entries()
    sums = {name: sum(entry[name] for entry in entries) for name in ("kills", "in_saves", "before_training", "seconds")}
    others = sum(not entry["same"] for entry in entries)
    most_lost = max((entry["most_lost"] for entry in entries), default=0)
    print(json.dumps({**sums, "runs": len(entries), "most_lost": most_lost, "others": others}))
    return int(others > 0)


if __name__ == "__main__":
    sys.exit(main())
