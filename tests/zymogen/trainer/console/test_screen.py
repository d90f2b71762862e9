"""The texts of a start and of progress: functions of plain values."""

import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data.order.plan_size import PlanSize
from zymogen.console.format import aligned
from zymogen.console.progress import clock_time
from zymogen.settings.interval import Interval
from zymogen.trainer import run_console
from zymogen.trainer.job import LossTerm
from zymogen.trainer.run.console_numbers import DEFAULT, console_numbers, format_numbers
from zymogen.trainer.run_console import (
    RunConsole,
    format_epochs,
    format_header,
    format_progress,
    loss_of,
    perplexities,
    tracker_rows,
)

RUN = Path("runs/own")
FACTS = [
    ("model", "esm2_8m, 7,512,474 parameters: ESM-2, 6 layers, width 320"),
    ("proteins", "5,577 for training, 28 for validation"),
    ("split", "by equal sequences only: relatives of a validation protein may train, so that this line is long"),
]


@pytest.mark.parametrize(
    ("facts", "size", "total", "seen", "step", "lines"),
    [
        (
            FACTS,
            (1_950_000, True),
            1_600_000,
            0,
            0,
            [
                "model         esm2_8m, 7,512,474 parameters: ESM-2, 6 layers, width 320",
                "proteins      5,577 for training, 28 for validation",
                "split         by equal sequences only: relatives of a validation protein may",
                "              train, so that this line is long",
                "one pass      1,950,000 tokens",
                "training      1,600,000 tokens, about 198 steps of 8,081, 0.82 passes",
            ],
        ),
        (
            [],
            (1_950_000, False),
            10**12,
            810_000,
            100,
            [
                "one pass      about 1,950,000 tokens",
                "training      1,000,000,000,000 tokens, about 123,456,791 steps of 8,100,",
                "              513,000 passes",
                "done before   810,000 tokens, 100 steps",
            ],
        ),
        ([], (None, False), 8_000, 0, 0, ["training      8,000 tokens, about 1 step"]),
    ],
)
def test_the_start(
    facts: list[tuple[str, str]], size: tuple[int | None, bool], total: int, seen: int, step: int, lines: list[str]
) -> None:
    extent = PlanSize(*size, ((0, 8100.0),))
    found = format_header(facts, extent, total_tokens=total, seen=seen, step=step, directory=RUN)
    assert found == [*lines, "run directory runs/own"]


def test_a_long_word_is_not_broken() -> None:
    path = "/a/very/long/folder" * 6
    assert aligned([("run directory", path)]) == [f"run directory {path}"]
    lines = aligned([("split", f"by clusters of {path}")])
    assert lines == ["split         by clusters of", f"              {path}"]


@pytest.mark.parametrize(
    ("passes", "words"),
    [(0.3071, "0.31 passes"), (1.0, "1.00 pass"), (12.4, "12 passes"), (538_461.5, "538,000 passes")],
)
def test_passes(passes: float, words: str) -> None:
    assert format_epochs(passes) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (172_799, "47:59:59"), (180_000, "2 d 2 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert clock_time(seconds) == words


LINE = {"loss": 2.8961, "perplexity": 18.104, "tokens_per_s": 4321.0, "flops_per_s": 1.0, "mfu": 0.314}
NUMBERS = console_numbers(DEFAULT)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "loss 2.896 | perplexity 18.10 | 4.3k tokens/s | MFU 31 %"),
        ({"loss": 600.0, "perplexity": math.exp(600)}, "loss 600.000 | perplexity 4e+260 | 4.3k tokens/s | MFU 31 %"),
        ({"tokens_per_s": 2_345_678.0, "mfu": 0.0}, "loss 2.896 | perplexity 18.10 | 2.35M tokens/s | MFU 0 %"),
        ({"mfu": None}, "loss 2.896 | perplexity 18.10 | 4.3k tokens/s"),  # on a CPU
        ({"mfu": None, "flops_per_s": None}, "loss 2.896 | perplexity 18.10"),  # tokens that cost nothing
        (
            {"perplexity": None, "perplexity/residue": 7.389, "mfu": None},
            "loss 2.896 | residue perplexity 7.39 | 4.3k tokens/s",
        ),
        ({"loss": "none", "perplexity": None}, "loss - | 4.3k tokens/s | MFU 31 %"),
    ],
)
def test_numbers_of_a_line(changes: dict[str, Any], shown: str) -> None:
    """A None takes a number out of the line; "none" is a number that a step does not have."""
    line = {name: None if value == "none" else value for name, value in (LINE | changes).items() if value is not None}
    assert " | ".join(format_numbers(NUMBERS, line)) == shown


@pytest.mark.parametrize(
    ("step", "steps", "share", "left_s", "shown"),
    [
        (10, 198, 0.0506, 83.2, "step 10 of about 198 | loss 1 | 5.0 % | 1:23 left"),
        (1, 198, 0.005, None, "step 1 of about 198 | loss 1 | 0.5 %"),
        (198, 199, 0.99999, 1.0, "step 198 of about 199 | loss 1 | 99.9 % | 0:01 left"),
        (199, 198, 1.0, 0.5, "step 199 of 199 | loss 1 | 100 %"),
        (1_000, 20_000, 0.05, 7200.0, "step 1,000 of about 20,000 | loss 1 | 5.0 % | 2:00:00 left"),
    ],
)
def test_a_line_of_progress(step: int, steps: int, share: float, left_s: float | None, shown: str) -> None:
    assert format_progress(["loss 1"], step, steps, share, left_s) == shown


def test_loss_and_perplexities_of_a_step() -> None:
    one = [LossTerm("masked_language", 1.0, has_perplexity=True)]
    two = [LossTerm("residue", 1.0, has_perplexity=True), LossTerm("length", 0.5)]
    assert (loss_of(one, [2.0]), perplexities(one, [2.0])) == (2.0, {"perplexity": math.exp(2.0)})
    assert (loss_of(two, [2.0, 8.0]), perplexities(two, [2.0, 8.0])) == (6.0, {"perplexity/residue": math.exp(2.0)})
    assert (loss_of(two, [None, 8.0]), perplexities(two, [None, 8.0])) == (4.0, {})
    assert loss_of(two, [None, None]) is None
    assert math.isnan(loss_of(two, [math.nan, None]) or 0.0)  # not finite: shown as it is
    assert math.isinf(perplexities(one, [1e4])["perplexity"])


def test_where_each_tracker_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    far = Path("/a/long/folder/in/which/the/runs/of/many/people/are/kept/own")
    assert aligned(tracker_rows(["wandb", "tensorboard", "trackio"], far)) == [
        f"wandb         wandb sync {far}/wandb/offline-run-*",  # whole, to be pasted
        f"tensorboard   tensorboard --logdir {far}",
        f"trackio       TRACKIO_DIR={far}/trackio trackio show --project zymogen",
    ]
    monkeypatch.delenv("WANDB_MODE")
    assert aligned(tracker_rows(["wandb"], RUN)) == ["wandb         at the address that wandb prints"]
    (row,) = aligned(tracker_rows(["tensorboard"], Path("my runs/it's")))
    assert shlex.split(row) == ["tensorboard", "tensorboard", "--logdir", "my runs/it's"]
    monkeypatch.setenv("TRACKIO_DIR", "my $runs")
    (row,) = aligned(tracker_rows(["trackio"], RUN))
    assert shlex.split(row)[1] == "TRACKIO_DIR=my $runs"


SAVES, VALIDATIONS = Interval(21, None), Interval(None, 45.0)


@pytest.mark.parametrize(
    ("step", "last", "left_s", "saves", "validations"),
    [
        (20, 63, 43.0, 3, 1),  # after 21, 42 and 63, where the end is; by the clock at the end alone
        (21, 64, 43.0, 3, 1),  # after 42, 63 and 64
        (21, 64, 46.0, 3, 2),
        (62, 63, 1.0, 1, 1),
        (63, 63, 0.0, 0, 0),
    ],
)
def test_how_often_a_pause_is_to_come(step: int, last: int, left_s: float, saves: int, validations: int) -> None:
    assert SAVES.times(step, last, left_s) == saves
    assert VALIDATIONS.times(step, last, left_s) == validations


def test_the_time_left_is_that_of_the_mean_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step does not count; a pause does."""
    now, shown = [0.0], []
    monkeypatch.setattr(run_console.time, "perf_counter", lambda: now[0])
    console = RunConsole(None, 1000, [])
    console._extent = PlanSize(None, False, ((0, 100.0),))
    monkeypatch.setattr(console, "update", lambda done, text: shown.append(text))
    for step, seconds in enumerate((60.0, 2.0, 2.0, 11.0), 1):
        now[0] += seconds
        console.report({}, step=step, seen=100 * step)
    assert [text.rpartition(" | ")[2] for text in shown] == ["10.0 %", "0:16 left", "0:14 left", "0:30 left"]


def test_texts_need_no_torch() -> None:
    program = "import sys; import zymogen.trainer.run_console; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
