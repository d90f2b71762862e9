"""Work whose end is not known: that it runs, for how long, and what it took; on a terminal and in a file."""

import io
import itertools
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest

from data.settings import CorpusSettings, IngestSettings
from data.sources.resolve import resolve
from data.store.build import open_or_build
from zymogen.console.progress import BuildProgress, ProgressBar, ProgressLine


def on_terminal(text: str, seconds: float, **how: float) -> str:
    """What a terminal shows of work that takes so long."""
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal, ProgressBar(text, terminal, **how):
        time.sleep(seconds)
    shown = ""
    with suppress(OSError):  # the other end is closed
        while True:
            shown += os.read(ours, 1 << 16).decode("utf-8", "replace")
    os.close(ours)
    return shown


def in_a_file(text: str, seconds: float, **how: float) -> list[str]:
    stream = io.StringIO()
    with ProgressBar(text, stream, **how):
        time.sleep(seconds)
    return stream.getvalue().splitlines()


def test_work_in_a_file() -> None:
    first, *between, last = in_a_file("clustering", 1.2, after_s=0.0, every_s=0.3)
    assert first == "clustering ..."
    assert 2 <= len(between) <= 4
    assert {"clustering: 0:00 so far", "clustering: 0:01 so far"} <= set(between)
    assert re.fullmatch(r"clustering: took 0:0[12]", last)


def test_short_work_is_not_mentioned() -> None:
    assert in_a_file("importing", 0.05, after_s=0.5) == []
    assert in_a_file("importing", 0.3, after_s=0.1) == ["importing ...", "importing: took 0:00"]
    assert "importing" not in on_terminal("importing", 0.05, after_s=0.5)


def test_only_one_of_several_processes_speaks() -> None:
    assert in_a_file("importing", 0.05, after_s=0.0, speaks=False) == []


def test_work_that_fails_does_not_claim_to_have_ended() -> None:
    stream = io.StringIO()

    def work() -> None:
        with ProgressBar("clustering", stream, after_s=0.0):
            time.sleep(0.05)
            raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        work()
    assert stream.getvalue() == "clustering ...\n"


def test_a_spinner_on_a_terminal() -> None:
    shown = on_terminal("clustering", 1.3, after_s=0.0)
    assert len(set(re.findall(r"([-\\|/])\S* clustering ", shown))) >= 2  # it turns
    assert "0:00:01" in shown  # and its time runs
    assert shown.rstrip().endswith("clustering: took 0:01")


def written_by(body: Callable[[TextIO], object]) -> str:
    """What a terminal shows of `body`, which writes to it."""
    ours, theirs = os.openpty()
    shown = b""
    with open(theirs, "w") as terminal:
        body(terminal)
    with suppress(OSError):
        while True:
            shown += os.read(ours, 1 << 16)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode("utf-8", "replace"))


def test_a_line_of_training_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "step 1,000 of about 3,784 | loss 2.345 | perplexity 10.44 | 103.2k tokens/s | 26.4 % | 9:27 left"

    def train(terminal: TextIO) -> None:
        with ProgressLine(100, stream=terminal) as line:
            line.update(26, text)

    monkeypatch.setenv("COLUMNS", "80")
    assert "step 1,000 of about 3,784 | loss 2.345 | 103.2k tokens/s | 26.4 % | 9:27 left" in written_by(train)
    monkeypatch.setenv("COLUMNS", "120")
    assert text in written_by(train)


def test_work_within_work_is_one_line_on_a_terminal() -> None:
    """The inner one is shown, then the outer one again, whose time ran on."""

    def work(terminal: TextIO) -> None:
        with ProgressBar("reading", terminal, after_s=0.0):
            time.sleep(0.3)
            with ProgressBar("clustering", terminal, after_s=0.0):
                time.sleep(0.4)
                assert len(ProgressLine._shown) == 2
            time.sleep(0.4)
        assert ProgressLine._shown == []

    shown = written_by(work)
    spinners = re.findall(r"(\w+) 0:00:0\d|(took)", shown)
    names = [name for name, _ in itertools.groupby(first or second for first, second in spinners)]
    assert names == ["reading", "clustering", "reading", "took", "reading", "took"]


def test_a_build_says_at_its_end_what_it_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BuildProgress, "told_from_s", 0.0)
    (tmp_path / "a.fasta").write_text(">a\nMKTAYIAK\n>b\nMKV\n")
    settings = CorpusSettings(sources=(str(tmp_path / "a.fasta"),))
    for _ in range(2):
        found = resolve(settings, "refuse", IngestSettings(), tmp_path)
        open_or_build(found.sources, tmp_path / "stores", "refuse", IngestSettings())
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1  # the second start found it
    assert re.fullmatch(r"built the token store: 2 records, 11 residues, in 0:\d\d", told[0])
