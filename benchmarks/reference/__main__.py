"""Reference runs: whether two versions of the code train the same bits.

    python -m benchmarks.reference > before.json                        # some minutes
    python -m benchmarks.reference --against before.json                # exit status 1 if anything differs
    python -m benchmarks.reference --only lora --set run.seed=8 --against before.json    # a control, which must fail

In: nothing, or an earlier output. Out: what differs, and one JSON object as the last line. Kept: nothing. Outputs are
compared on one machine, with the same versions of PyTorch and DeepSpeed. Where a setting gets another name, the two
recipes beside this file and `RUNS` get it, too; a number of metrics or scores may have another name.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.reference.runs import RUNS, one_thread, record


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs between two records of one run, as `NAME: BEFORE, now NOW`."""
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if not isinstance(old, dict) or not isinstance(new, dict):
            yield f"{name}: {old}, now {new}"
        elif name == "files" or sorted(old.values()) != sorted(new.values()):
            yield from (f"{name} {each}" for each in differences(old, new))


def main() -> None:
    """Record the runs, and compare them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reference", description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="section.field=value in each run")
    parser.add_argument("--against", type=Path, metavar="FILE", help="an earlier output; exit status 1 if one differs")
    options = parser.parse_args()
    before = json.loads(options.against.read_text("utf-8").splitlines()[-1]) if options.against else None
    one_thread()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            began = time.monotonic()
            found[name] = record(name, Path(folder), tuple(options.set))
            print(f"{name}: {found[name]['step']} steps, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    differing = []
    if before is not None:
        differing = [f"{name}: {each}" for name in found for each in differences(before.get(name, {}), found[name])]
        print("\n".join(differing) or f"{len(found)} runs, all equal")
    print(json.dumps(found, sort_keys=True))
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
