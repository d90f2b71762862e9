"""One run in every tracker, whatever the number of starts; and credentials as wandb itself finds them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from accelerate.utils import LoggerType

from support.inputs.seeded_source import until
from support.launching import LIMIT_S, environment, exits, lines
from support.places import ROOT
from zymogen.trainer.engine.engine import Engine

KEY = "0123456789abcdef0123456789abcdef01234567"
OTHER = "https://wandb.company.example"
NETRC = f"machine api.wandb.ai\n  login user\n  password {KEY}\n"
OWN_NETRC = f"machine wandb.company.example\n  login user\n  password {KEY}\n"

SEARCHES: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "nothing": ({}, {}, "offline"),
    "a variable": ({"WANDB_API_KEY": KEY}, {}, "online"),
    "a token file": ({"WANDB_IDENTITY_TOKEN_FILE": "{home}/token"}, {"token": "a.b.c"}, "online"),
    ".netrc": ({}, {".netrc": NETRC}, "online"),
    "_netrc": ({}, {"_netrc": NETRC}, "online"),
    "$NETRC": ({"NETRC": "{home}/elsewhere"}, {"elsewhere": NETRC}, "online"),
    ".netrc of another program, whose password holds the word": (
        {},
        {".netrc": f"machine example.org\n  login wandb\n  password {KEY}\n"},
        "offline",
    ),
    "a server of one's own": ({"WANDB_BASE_URL": OTHER}, {".netrc": OWN_NETRC}, "online"),
    "a server of one's own, credentials of another": ({"WANDB_BASE_URL": OTHER}, {".netrc": NETRC}, "offline"),
    "credentials, and a mode that was asked for": (
        {"WANDB_API_KEY": KEY, "WANDB_MODE": "disabled"},
        {},
        "disabled",
    ),
    "a key that is none": ({"WANDB_API_KEY": "short"}, {}, "run.trackers: credentials for wandb are invalid"),
}
"""Variables, files of the home folder, and how the run is recorded."""

_PROGRAM = """
import json, os, sys
from pathlib import Path
from zymogen.trainer.engine.engine import _wandb_mode
import wandb.sdk.lib.wbauth
for name, home, variables in json.load(sys.stdin):
    sys.stdout.flush()
    if not (child := os.fork()):
        os.environ.update(variables)
        if home:
            os.environ["HOME"] = home
        try:
            found = _wandb_mode(Path(home)) or "online"
        except ValueError as error:
            found = str(error)
        print(json.dumps([name, found]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_credentials_are_found_where_wandb_looks(tmp_path: Path) -> None:
    cases = []
    for number, (name, (variables, files, _)) in enumerate(SEARCHES.items()):
        home = tmp_path / str(number)
        home.mkdir()
        for file, text in files.items():
            (home / file).write_text(text)
            (home / file).chmod(0o600)
        cases.append([name, str(home), {key: value.replace("{home}", str(home)) for key, value in variables.items()}])
    clean = {key: value for key, value in environment().items() if not key.startswith(("WANDB_", "NETRC"))}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(cases),
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert {name: words[: len(SEARCHES[name][2])] for name, words in found.items()} == {
        name: expected for name, (*_, expected) in SEARCHES.items()
    }, done.stderr


def without_account(folder: Path) -> dict[str, str]:
    """An environment in which wandb finds no credentials; it reads all of it once in a process."""
    kept = {key: value for key, value in environment().items() if not key.startswith(("WANDB_", "NETRC"))}
    return {**kept, "HOME": str(folder), "WANDB_MODE": "offline"}


@pytest.mark.slow
def test_every_start_continues_the_run_of_each_tracker(recipe_in: Any, tmp_path: Path) -> None:
    words = [str(recipe_in(tmp_path)), 'run.trackers=["tensorboard","wandb"]', "run.log_every=2"]
    for tokens in ("4_000", "8_000"):
        command = [sys.executable, "-m", "pretrain", *words, f"schedule.total_tokens={tokens}"]
        subprocess.run(
            [*command, "--allow-schedule-change"], cwd=ROOT, env=without_account(tmp_path), timeout=LIMIT_S, check=True
        )
    run = tmp_path / "run"
    run_id = json.loads((run / "run.json").read_text())["id"]
    offline = sorted((run / "wandb").glob("offline-run-*"))
    assert [path.name.rpartition("-")[2] for path in offline] == [run_id] * len(offline)
    assert len({path.parent for path in (run / "zymogen").rglob("hparams.yml")}) == 1
    losses = [json.dumps(line["loss"]).encode() for line in lines(run / "metrics.jsonl") if "loss" in line]
    assert len(losses) > 4
    files = [path for folder in offline for path in folder.glob("run-*.wandb")]
    until(lambda: all(any(loss in path.read_bytes() for path in files) for loss in losses))


def two_starts(folder: Path) -> None:
    """Log to trackers in two starts, of which the second one takes a step again."""
    os.environ.update(without_account(folder))
    engine = Engine(Accelerator(cpu=True))
    engine.accelerator.log_with = [LoggerType.WANDB, LoggerType.TENSORBOARD]
    for steps in (((5, 2.515625), (3, 2.765625)), ((4, 3.015625),)):
        engine.start_trackers({"a": 1}, folder, "0123456789abcdef")
        for step, loss in steps:
            engine.track({"loss": loss}, step)
        engine.release()


@pytest.mark.launch
def test_two_starts_are_one_run_and_a_step_that_is_taken_again_is_recorded(tmp_path: Path) -> None:
    """W&B drops what is logged under a smaller step than the last one; the step is a value of ours."""
    assert exits(two_starts, [(tmp_path,)]) == [0]
    files = sorted(tmp_path.glob("wandb/offline-run-*-0123456789abcdef/run-*.wandb"))
    texts = (b"2.515625", b"2.765625", b"3.015625")
    until(lambda: all(any(text in file.read_bytes() for file in files) for text in texts))
    assert len([*tmp_path.rglob("hparams.yml")]) == 1
