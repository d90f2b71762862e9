"""Four real assay tables, from a small model pretrained for minutes to test scores beside every baseline.

    python -m benchmarks.assays [--rows 200] [--only deeploc gb1] [--data FOLDER] [--folder runs/assays]

DeepLoc's locations with a membrane label that is often missing, GB1 from low to high fitness, secondary structure by
residue, and six assays of beta-lactamase by position. The encoder is `esm2_800k`, pretrained by `python -m pretrain` in
five minutes on the proteins of the same folder, or found in the folder from the last time. With --rows, some rows of
each table are taken and a random encoder of 60 thousand parameters, which only shows that everything runs.

A model that loses to a baseline is shown as one that does. The time of MMseqs2, which aligns neighbours and audits the
split, is given apart.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.assays.cases import CASES, write_case, write_recipe
from benchmarks.assays.measure import measure
from benchmarks.report import last_line
from benchmarks.results.record import parse_options
from finetune.results.results import Results

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
MINUTES = 5.0
LIMIT_MINUTES = 25.0
"""What all four tables may take on two cores, pretraining and alignments apart."""
SMALL = ("run.evaluate_every=5", "schedule.passes=2", "data.bin_tokens=2048")
"""Overrides where only some rows are taken."""


def pretrained(data: Path, folder: Path, minutes: float) -> tuple[Path, float]:
    """The directory of the pretraining run, which is made unless it has finished before, and seconds that it took now.

    Raises:
        SystemExit: pretraining failed.
    """
    run, seconds = folder / "pretrained", 0.0
    if not (run / "export" / "config.json").is_file():
        files = sorted(map(str, (data / "pretrain").glob("*.gz")))
        words = ["--minutes", f"{minutes:g}", "model.preset=esm2_800k", f"run.directory={run}"]
        began = time.perf_counter()
        command = [sys.executable, "-m", "pretrain", *files, *words, f"data.store_dir={folder / 'stores'}"]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f"pretraining failed: {' '.join(command)}")
        seconds = time.perf_counter() - began
        print(f"pretrained in {seconds:.0f} s with all that belongs to it", flush=True)
    return run, seconds


def rows(name: str, results: Results) -> list[dict[str, Any]]:
    """For the JSON line: a row for each task, undefined ones with their reason."""
    found = []
    for task in results.scores.tasks:
        row: dict[str, Any] = {"work": name, "task": task.task, "metric": task.title, "labels": task.labels}
        if task.value is None:
            found.append({**row, "undefined": task.undefined})
            continue
        others = results.of_baselines(task)
        ends = {"low": task.low, "high": task.high}
        beats_all = all(task.value > value for value in others.values())
        found.append({**row, "model": task.value, **ends, "baselines": others, "beats_all": beats_all})
    return found


def proposal(name: str, proposed: str, skills: Mapping[str, float]) -> dict[str, Any]:
    """What `finetune.look` proposes for a table, and whether that was the better of what was run.

    Args:
        name: of the table.
        proposed: 'frozen' or 'lora'.
        skills: adaptation -> mean skill of the tested tasks, of what was run.
    """
    others = [skill for run, skill in skills.items() if run != proposed]
    right = skills[proposed] >= max(others) if proposed in skills and others else None
    return {"table": name, "proposed": proposed, "skills": dict(skills), "right": right}


def in_words(proposal: Mapping[str, Any]) -> str:
    """A line about a proposal."""
    skills = ", ".join(f"{run} {skill:.3f}" for run, skill in proposal["skills"].items())
    judged = {True: "the better one", False: "the worse one", None: "not compared, one of the two was run"}
    return (
        f"{proposal['table']}: finetune.look proposes {proposal['proposed']}; mean skill in test: {skills}; "
        f"{judged[proposal['right']]}"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.assays", description="Four real assay tables beside every baseline."
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of real data")
    parser.add_argument("--folder", type=Path, default=Path("runs/assays"), help="where runs and stores are kept")
    parser.add_argument("--rows", type=int, help="rows of each table; without it, all of them")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], help="only these tables")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of pretraining")
    options = parse_options(parser, words)
    if not options.data.is_dir():
        parser.error(f"there is no folder {options.data}; name the folder of real data with --data")
    folder, small = options.folder, options.rows is not None
    model, pretraining = 'preset = "esm2_60k"', 0.0
    if not small:
        run, pretraining = pretrained(options.data, folder, options.minutes)
        model = f'init = "{run.resolve()}"'
    found: list[dict[str, Any]] = []
    proposals: list[dict[str, Any]] = []
    seconds: dict[str, dict[str, float]] = {}
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        work = folder / (f"rows-{options.rows}" if small else "all")
        places = write_case(case, options.data, work, options.rows)
        skills: dict[str, float] = {}
        proposed = ""
        for kind in case.adaptations:
            path = write_recipe(case, kind, work, places, model, folder / "stores")
            name = f"{case.name} {kind}"
            print(f"\n{name}: {case.said}\n", flush=True)
            outcome = measure(path, SMALL if small else ())
            print(f"\n{name}: {outcome.seconds:.0f} s, and {outcome.mmseqs_s:.0f} s of MMseqs2", flush=True)
            found += rows(name, outcome.results)
            skills[kind], proposed = outcome.results.scores.stopping_metric, outcome.proposed
            seconds[name] = {"run": round(outcome.seconds, 1), "mmseqs": round(outcome.mmseqs_s, 1)}
        proposals.append(proposal(case.name, proposed, skills))
    print("\n" + "\n".join(map(in_words, proposals)))
    taken, aligned = (sum(of[phase] for of in seconds.values()) for phase in ("run", "mmseqs"))
    print(f"\nall together {taken / 60:.1f} minutes, and {aligned / 60:.1f} minutes of MMseqs2")
    content: dict[str, Any] = {"rows": found, "proposals": proposals}
    minutes = {"measured": round(taken / 60, 2), "bar": LIMIT_MINUTES, "mmseqs": round(aligned / 60, 2)}
    minutes["pretraining"] = round(pretraining / 60, 2)
    whole = not small and not options.only
    holds = {"holds": taken <= 60 * LIMIT_MINUTES} if whole else {}
    content |= {"minutes": {**minutes, **holds}, "seconds": seconds}
    last_line("assays", content, record=options.record)


if __name__ == "__main__":
    main()
