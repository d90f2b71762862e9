"""Results that are read after the next step is queued: the host is one step ahead, and nothing else is different."""

import ctypes
import gc
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGTERM
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
import torch

import data.batches.collate
import zymogen.trainer.loop
from data.batches.batch import Batch, Targets
from data.batches.loader import Step
from data.order.plan import Cursor
from pretrain.__main__ import main
from support.jobs.numerical_faults import not_finite_once
from support.kept_runs import STEPS_12, STEPS_16, Trained, config
from support.launching import End, bit_equal, end_of, lines, with_rollbacks
from support.rank_pool import RankPool
from zymogen.trainer.flags import StepFlags
from zymogen.trainer.loop import Trainer
from zymogen.trainer.step import InFlightSteps, StepResult

LATE, AT_ONCE = "run.read_late=always", "run.read_late=never"
OFTEN = ("run.log_every=1", "run.checkpoint_every=5", "run.evaluate_every=7")
TIMES = {"time", "tokens_per_s", "loader_wait", "flops_per_s", "mfu", "memory_bytes"}
OF_SAVES = {"failed_saves", "skipped_saves"}
"""When a save ends is a matter of time, too."""


def same(a: End, b: End) -> bool:
    return bit_equal(a, b) and replace(a, tensors={}) == replace(b, tensors={})


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's steps and validations, without times and without the number of the start."""
    left_out = TIMES | OF_SAVES | {"attempt"}
    found = (line for line in lines(run / "metrics.jsonl") if "checkpoint_s" not in line)
    return [{key: value for key, value in line.items() if key not in left_out} for line in found]


# When the host waits ------------------------------------------------------------------------------


@dataclass
class SlowDevice:
    """Takes each step some time after it was queued, one after the other, as a GPU does."""

    said: list[tuple[str, int]] = field(default_factory=list)
    """What the host did, and to which step: "queue", "wait" for it to be taken, "save"."""
    waiting: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)
    taken: dict[int, threading.Event] = field(default_factory=dict)

    def take(self) -> None:
        while (number := self.waiting.get()) is not None:
            time.sleep(0.005)
            self.taken[number].set()

    def queued(self, result: StepResult) -> "Queued":
        number = len(self.taken) + 1
        self.taken[number] = threading.Event()
        self.said.append(("queue", number))
        self.waiting.put(number)
        return Queued(result.packed, result.num_objectives, result.num_floats, device=self, number=number)


@dataclass(frozen=True, kw_only=True)
class Queued(StepResult):
    """The result of a step on that device."""

    device: SlowDevice
    number: int

    def to_host(self) -> Self:
        if ("wait", self.number) not in self.device.said:
            self.device.said.append(("wait", self.number))
        assert self.device.taken[self.number].wait(60)
        return self


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDevice]:
    slow, train_step, save = SlowDevice(), zymogen.trainer.loop.train_step, zymogen.trainer.loop.Trainer.save

    def saving(self: zymogen.trainer.loop.Trainer, **how: Any) -> bool:
        slow.said.append(("save", self.state.step))
        return save(self, **how)

    monkeypatch.setattr(
        zymogen.trainer.loop, "train_step", lambda *given, **how: slow.queued(train_step(*given, **how))
    )
    monkeypatch.setattr(zymogen.trainer.loop.Trainer, "save", saving)
    thread = threading.Thread(target=slow.take)
    thread.start()
    yield slow
    slow.waiting.put(None)
    thread.join()


@pytest.mark.parametrize("word", [LATE, pytest.param(AT_ONCE, marks=pytest.mark.slow)])
def test_the_host_is_ahead_by_exactly_one_step(device: SlowDevice, recipe_in, tmp_path: Path, word: str) -> None:
    saves = (5, 10, 12)
    assert main([str(recipe_in(tmp_path)), *STEPS_12, "run.checkpoint_every=5", "run.evaluate_every=1 h", word]) == 0
    expected: list[tuple[str, int]] = []
    for number in range(1, 13):
        expected.append(("queue", number))
        if word == AT_ONCE:
            expected.append(("wait", number))
        else:
            follows_a_save = number - 1 in (0, *saves)
            expected += [] if follows_a_save else [("wait", number - 1)]
            expected += [("wait", number)] if number in saves else []  # a save is of what has been taken
        expected += [("save", number)] if number in saves else []
    assert device.said == expected


# What is held until then --------------------------------------------------------------------------


def step_in(memory: np.ndarray) -> Step:
    """A step whose batch has slices of `memory`, as batches in pinned memory have."""
    words = torch.from_numpy(memory)
    targets = (Targets(words[:4], words[4:8]),)
    batch = Batch(
        tokens=words[:8],
        positions=words[8:16],
        documents=words[16:24],
        cu_seqlens=words[24:28].int(),
        draw_keys=(0,),
        spans=(),
        targets=targets,
        digests=words[28:29],
    )
    return Step((batch.share(0, 2),), 1, (0,), 8, 64, Cursor(), 1.0)


def result_of_a_step(**flags: int) -> StepResult:
    floats = torch.tensor([0, 0, 0, 1], dtype=torch.float64)  # norm, scale, skipped, and the loss
    return StepResult(torch.cat([torch.tensor([1, 1, *StepFlags(**flags)]), floats.view(torch.int64)]), 1, len(floats))


def test_memory_of_batches_is_held_until_their_step_is_read() -> None:
    """torch gives pinned memory away as soon as no tensor holds it, though a device may still copy slices of it."""
    memories = [np.arange(32) for _ in range(3)]
    held = [weakref.ref(memory) for memory in memories]
    found: list[list[bool]] = []
    ahead = InFlightSteps(1)
    while memories:
        ahead.push(step_in(memories.pop(0)), result_of_a_step(), 0.1)
        gc.collect()
        found.append([each() is not None for each in held])
        ahead.pop(drain=False)
    gc.collect()
    assert found == [[True, True, True], [True, True, True], [False, True, True]]
    assert [each() is not None for each in held] == [False, False, True]
    ahead.pop(drain=True)
    gc.collect()
    assert [each() is not None for each in held] == [False] * 3


class Recycled:
    """Memory of batches that is written over as soon as nobody holds it, as pinned memory is for the next batch."""

    def __init__(self) -> None:
        self.blocks: list[np.ndarray] = []
        """All of it, so that no address becomes another thing's."""

    def empty(self, shape: tuple[int, ...], dtype: Any, pinned: bool) -> np.ndarray:
        block = np.empty(math.prod(shape) * np.dtype(dtype).itemsize, np.uint8)
        self.blocks.append(block)
        array = block.view(dtype).reshape(shape)
        weakref.finalize(array, block.fill, 0xFF)  # a tensor made of it, and each slice of that, holds `array`
        return array


@dataclass(frozen=True, kw_only=True)
class Copied(Queued):
    """The result of a step whose batches the device copies when it takes the step: their slices, by address."""

    sources: list[tuple[int, int]]
    """Address and number of bytes."""
    expected: list[bytes]

    def to_host(self) -> Self:
        if ("wait", self.number) not in self.device.said:
            assert [ctypes.string_at(*source) for source in self.sources] == self.expected
        return super().to_host()


def slices_of(step: Step) -> list[torch.Tensor]:
    """What the second of two ranks that share the batches copies of them."""
    shared = [batch.share(1, 2) for batch in step.batches]
    found = [tensor for each in shared for tensor in (each.tokens, each.positions, each.documents, each.cu_seqlens)]
    return found + [tensor for each in shared for part in each.targets for tensor in (part.slots, part.labels)]


def test_a_device_that_takes_a_step_late_copies_what_was_queued(
    device: SlowDevice, recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Recycled()
    monkeypatch.setattr(data.batches.collate, "_empty", memory.empty)
    train_step, numbers = zymogen.trainer.loop.train_step, []

    def copied(step: Step, *given: Any, **how: Any) -> Copied:
        tensors = slices_of(step)
        queued = train_step(step, *given, **how)
        sources = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors if tensor.numel()]
        numbers.append(queued.number)
        return Copied(**vars(queued), sources=sources, expected=[ctypes.string_at(*each) for each in sources])

    monkeypatch.setattr(zymogen.trainer.loop, "train_step", copied)
    assert main([str(recipe_in(tmp_path)), *STEPS_12, "run.checkpoint_every=1 h", "run.evaluate_every=1 h", LATE]) == 0
    assert numbers == list(range(1, 13))
    assert any(block.size and (block == 0xFF).all() for block in memory.blocks), "nothing was written over"


@pytest.mark.parametrize("asked", ["interrupt", "save", "validate"])
def test_what_a_step_asks_for_is_done_when_no_step_is_queued(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[float] = []
    ahead = InFlightSteps(1)
    for rate in (0.1, 0.2):
        ahead.push(step_in(np.arange(32)), result_of_a_step(writing=1, **({asked: 1} if rate == 0.1 else {})), rate)
    assert (len(ahead), ahead.num_tokens) == (2, 16)
    log = SimpleNamespace(step=lambda state, step, result, rate, *rest, **how: recorded.append(rate))
    saver = SimpleNamespace(update=lambda flags, step: None)
    monkeypatch.setattr(Trainer, "_move_past", lambda self, step, result: None)
    trainer = Trainer.__new__(Trainer)
    vars(trainer).update(in_flight=ahead, log=log, saver=saver, has_recipe=True, console=None)
    vars(trainer).update(state=SimpleNamespace(step=1, tokens_seen=0), history=SimpleNamespace(patience_exhausted=True))
    assert trainer.record(drain=False) == StepFlags(writing=2)._replace(**{asked: 1})
    assert (recorded, len(ahead)) == ([0.1, 0.2], 0)


# What a run ends with -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clean(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of twelve steps that reads each step at once."""
    folder = tmp_path_factory.mktemp("clean")
    assert main([str(recipe_in(folder)), *STEPS_12, *OFTEN, AT_ONCE]) == 0
    return folder


@pytest.mark.parametrize(
    "steps", [pytest.param(each, marks=pytest.mark.slow) for each in ((6, 7, 8), (5, 6), (11, 12))]
)
def test_steps_that_are_skipped_or_taken_once_more(recipe_in, tmp_path: Path, steps: tuple[int, ...]) -> None:
    """Two steps without a finite gradient are skipped; after three, the run falls back to a save, and one is queued."""
    ended = []
    for word in (AT_ONCE, LATE):
        (tmp_path / word).mkdir()
        with not_finite_once(steps):
            assert with_rollbacks(main, [str(recipe_in(tmp_path / word)), *STEPS_12, *OFTEN, word]) == 0
        ended.append(tmp_path / word / "run")
    assert same(end_of(ended[0]), end_of(ended[1]))
    assert end_of(ended[0]).skipped_steps == (0 if len(steps) == 3 else 2)
    assert metrics(ended[0]) == metrics(ended[1])


@pytest.mark.slow
def test_a_signal_saves_what_was_queued(
    recipe_in, tmp_path: Path, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, train_step = [0], zymogen.trainer.loop.train_step

    def signalled(*given: Any, **how: Any) -> StepResult:
        calls[0] += 1
        if calls[0] == 8:
            os.kill(os.getpid(), SIGTERM)
        return train_step(*given, **how)

    monkeypatch.setattr(zymogen.trainer.loop, "train_step", signalled)
    words = [str(recipe_in(tmp_path)), *STEPS_12, *OFTEN, LATE]
    assert main(words) == 75
    assert end_of(tmp_path / "run").step == 8
    assert main(words) == 0
    assert same(end_of(tmp_path / "run"), end_of(clean / "run"))
    assert metrics(tmp_path / "run") == metrics(clean / "run")


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize(
    ("engine", "processes"),
    [
        ("ddp", 2),
        ("zero3", 2),
        *(pytest.param(*e, marks=pytest.mark.prove) for e in (("fsdp2", 2), ("zero1", 2), ("zero2", 2), ("hsdp", 4))),
    ],
)
def test_engines_end_with_the_same_bytes_and_lines(trained: Trained, engine: str, processes: int) -> None:
    at_once = trained(engine, processes, (*OFTEN, AT_ONCE), STEPS_16)
    late = trained(engine, processes, (*OFTEN, LATE), STEPS_16, fault="one_step_ahead")
    assert same(late.end, at_once.end)
    assert metrics(late.folder / "run") == metrics(at_once.folder / "run")


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize(
    "engine",
    ["ddp", *(pytest.param(each, marks=pytest.mark.prove) for each in ("fsdp2", "zero2", "zero3"))],
)
def test_ranks_fall_back_alike(trained: Trained, engine: str) -> None:
    """Three steps without a finite gradient: found when the one after them is queued, on every rank."""
    at_once = trained(engine, 2, (*OFTEN, AT_ONCE), STEPS_16, fault="not_finite_once")
    late = trained(engine, 2, (*OFTEN, LATE), STEPS_16, fault="not_finite_once+one_step_ahead")
    for ended in (at_once, late):
        starts = [line for line in lines(ended.folder / "run/attempts.jsonl") if "base_step" in line]
        assert len(starts) == 2, "nothing fell back"
    assert same(late.end, at_once.end)
    assert metrics(late.folder / "run") == metrics(at_once.folder / "run")


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_ranks_that_learn_of_a_signal_late_save_the_same_step(
    pool: RankPool, trained: Trained, recipe_in, tmp_path: Path
) -> None:
    """Rank 1 gets SIGTERM in step 5, and tells of it with step 6, which is read when step 7 is queued."""
    run, words = tmp_path / "run", [recipe_in(tmp_path), *STEPS_16, *OFTEN, LATE]
    done = pool.run(2, config("ddp"), words, fault="terminated+told_by_reading")
    assert done.statuses == (75, 75), done.output
    assert end_of(run).step == 7
    assert pool.run(2, config("ddp"), words).status == 0
    assert same(end_of(run), trained("ddp", 2, (*OFTEN, AT_ONCE), STEPS_16).end)


def last_of_each_step(run: Path) -> dict[tuple[int, bool], dict[str, Any]]:
    """The lines of a run's steps and validations; of a step that was taken again, as it was the last time."""
    return {(line["step"], "loss" in line): line for line in metrics(run)}


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize(
    "engine",
    [
        "zero3",
        *(pytest.param(each, marks=pytest.mark.prove) for each in ("ddp", "fsdp2", "zero2")),
    ],
)
def test_a_killed_run_ends_with_the_same_bytes(
    pool: RankPool, trained: Trained, recipe_in, tmp_path: Path, engine: str
) -> None:
    run, words = tmp_path / "run", [recipe_in(tmp_path), *STEPS_16, *OFTEN, LATE]

    def past_a_checkpoint() -> bool:
        return any(line["step"] >= 8 for line in lines(run / "metrics.jsonl")) and any(run.glob("checkpoints/step-*"))

    pool.run_and_kill(2, config(engine), words, past_a_checkpoint)
    assert max(line["step"] for line in lines(run / "metrics.jsonl")) < 16
    done = pool.run(2, config(engine), words)
    assert done.status == 0, done.output
    at_once = trained(engine, 2, (*OFTEN, AT_ONCE), STEPS_16)
    assert same(end_of(run), at_once.end)
    assert last_of_each_step(run) == last_of_each_step(at_once.folder / "run")
