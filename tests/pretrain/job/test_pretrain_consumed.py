"""A run on a stream goes on from the records that it was trained on, and from no others."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from data.store import growing as stream
from pretrain.__main__ import main
from support.inputs.token_stores import Proteins, changed, proteins
from support.launching import end_of, lines
from support.places import ROOT
from support.rank_pool import RankPool


@pytest.fixture(autouse=True)
def _builders() -> Iterator[None]:
    yield
    while stream._builders:
        builder = stream._builders.pop()
        builder.kill()
        builder.wait()


STREAMED = (
    *("data.streaming=true", "data.clusters=none", "data.window_sequences=64", "data.bins_per_step=3"),
    *("schedule.final_lr=1.0", "--allow-schedule-change"),
)


class Streamed:
    """A run on a FASTA file of 400 records, in windows of 64, that stops after some 6,000 tokens."""

    def __init__(self, recipe: Path) -> None:
        self.root, self.fasta = recipe.parent / "run", recipe.parent / "stream.fasta"
        self.words = [str(recipe), *STREAMED, f"data.sources=['{self.fasta}']"]
        self.content = proteins(400)

    def write(self, content: Proteins) -> None:
        self.fasta.write_text("".join(f">{name}\n{letters}\n" for name, letters in content))

    @property
    def read(self) -> int:
        """Records that the last checkpoint was written after."""
        return 64 * (end_of(self.root).cursor["window"] + 1)


SHORT, LONG = "schedule.total_tokens=6_000", "schedule.total_tokens=9_000"


@pytest.fixture
def streamed(recipe_in, tmp_path: Path) -> Streamed:
    return Streamed(recipe_in(tmp_path))


def refusal(streamed: Streamed, said: str) -> None:
    (error,) = (line for line in said.splitlines() if line.startswith("error: "))
    assert "the stream has changed where the run has read it already" in error
    assert f"the checkpoint was written after {streamed.read} records" in error


@pytest.mark.slow
def test_a_run_goes_on_from_what_it_read_and_from_nothing_else(
    streamed: Streamed, capsys: pytest.CaptureFixture[str]
) -> None:
    streamed.write(streamed.content)
    assert main([*streamed.words, SHORT]) == 0
    first, read = end_of(streamed.root), streamed.read
    assert 64 < read < 336  # past the window that the fingerprint is of, before the end
    trainer = json.loads(sorted(streamed.root.glob("checkpoints/*/trainer.json"))[-1].read_text())
    assert trainer["entries"]["corpus/consumed"]["records"] == read

    streamed.write(changed(streamed.content, read - 1))
    capsys.readouterr()
    assert main([*streamed.words, LONG]) == 78
    refusal(streamed, capsys.readouterr().err)
    assert end_of(streamed.root).step == first.step
    assert lines(streamed.root / "attempts.jsonl")[-1]["exit"] == "input"

    streamed.write([*streamed.content[:read], *proteins(30, seed=1)])  # another tail, and a shorter one
    assert main([*streamed.words, LONG]) == 0
    assert end_of(streamed.root).step > first.step


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_two_processes_go_on_from_what_one_read(streamed: Streamed, pool: RankPool) -> None:
    ddp = ROOT / "accelerate_configs/ddp.yaml"
    streamed.write(streamed.content)
    assert main([*streamed.words, SHORT]) == 0
    streamed.write(changed(streamed.content, streamed.read - 1))
    ended = pool.run(2, ddp, [*streamed.words, LONG])
    assert ended.statuses == (78, 71), ended.output
    refusal(streamed, ended.outputs[0])
    streamed.write(streamed.content)
    assert pool.run(2, ddp, [*streamed.words, LONG]).status == 0
    two = end_of(streamed.root)
    whole = f"run.directory={streamed.root.parent / 'whole'}"
    assert main([*streamed.words, LONG, whole]) == 0
    assert end_of(streamed.root.parent / "whole").chain == two.chain
    streamed.write(changed(streamed.content, 0))  # and back: what two processes have read binds one
    assert main([*streamed.words, LONG, whole]) == 78
