"""The first cause of a failed start is what a user reads: at its end, and at the next start where rank 0 died."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from pretrain.inspect.__main__ import main as inspect
from support.inputs.written_runs import WrittenStarts
from support.kept_runs import STEPS_12
from support.launching import DDP, launch, lines
from support.rank_pool import RankPool
from zymogen.trainer.recovery.restart_limit import require_progress

LOST = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"
GONE = "another rank was killed, or its machine or the network went away"


def traceback_of(rank: int) -> str:
    return f"its traceback is in RUN/ranks/rank-{rank:05}.jsonl"


@pytest.mark.parametrize(
    ("end", "errors", "said", "status"),
    [
        ("finished", [], None, 0),
        ("stopped by SIGTERM at step 7", [], None, 75),
        ("interrupted", [], None, 130),
        (None, [], ": it was killed, or its machine went away", 75),
        (None, [{"rank": 1, "message": LOST}], ": it was killed, or its machine went away", 75),
        (
            *("error", [{"message": "no kernel\nof this kind"}]),
            *(f" ended as error at step 7: rank 0: RuntimeError: no kernel; {traceback_of(0)}", 70),
        ),
        (
            *(None, [{"rank": 0, "at": "12:01", "message": LOST}, {"rank": 2, "error": "KeyError", "message": "'x'"}]),
            *(f" ended as error at step 7: rank 2: KeyError: 'x'; {traceback_of(2)}", 70),
        ),
        (
            *("stopped by SIGTERM at step 7", [{"rank": 2, "error": "KeyError", "message": "'x'"}]),
            *(f" ended as error at step 7: rank 2: KeyError: 'x'; {traceback_of(2)}", 70),
        ),
        (
            *("peer", [{"class": "peer", "message": LOST}]),
            *(f" ended as peer at step 7: {GONE}; rank 0: RuntimeError: {LOST}; {traceback_of(0)}", 71),
        ),
        (
            *("error", [{"error": "DistBackendError", "message": "NCCL"}]),  # of an earlier version
            *(f" ended as error at step 7: {GONE}; rank 0: DistBackendError: NCCL; {traceback_of(0)}", 70),
        ),
        ("storage", [], " ended as storage", 74),  # the disk stored no line of a rank
        (
            *("input", [{"class": "input", "error": "ValueError", "message": "it diverged", "step": 1200}]),
            *(f" ended as input at step 1,200: rank 0: ValueError: it diverged; {traceback_of(0)}", 78),
        ),
    ],
)
def test_the_next_start_says_how_the_last_one_failed(
    end: str | None,
    errors: list[dict[str, Any]],
    said: str | None,
    status: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    written = WrittenStarts(tmp_path)
    require_progress(*written.known, despite_failures=False)
    written.failed(1)
    written.start(exit_class=end)
    for error in errors:
        written.error(**error)
    require_progress(*written.known, despite_failures=False)
    line = capfd.readouterr().err
    assert line.replace(str(tmp_path), "RUN") == ("" if said is None else f"the last start (attempt 2){said}\n")
    assert [start.exit_class.status for start in written.known[1]] == [70, status]


def test_the_first_cause_is_the_earliest_in_the_run_whatever_clocks_say(tmp_path: Path) -> None:
    """The clock of each machine is another one; what waited or lost the others comes after what failed."""
    errors = [
        {"rank": 0, "step": 6, "phase": "train", "message": LOST},
        {"rank": 1, "step": 6, "phase": "train", "error": "Hang", "class": "peer"},
        {"rank": 2, "step": 6, "phase": "load", "error": "KeyError"},
        {"rank": 3, "step": 6, "phase": "checkpoint", "error": "IndexError"},
        {"rank": 4, "step": 7, "phase": "load", "error": "OSError"},
    ]
    causes = []
    for number, order in enumerate(itertools.permutations(range(len(errors)))):
        written = WrittenStarts(tmp_path / str(number))
        written.start()
        for error, hour in zip(errors, order, strict=True):
            written.error(at=f"12:0{hour}", **error)
        causes.append(written.known[1][0].cause)
        if number > 20:
            break
    assert {cause and (cause.rank, cause.error) for cause in causes} == {(2, "KeyError")}
    alone = WrittenStarts(tmp_path / "alone")
    alone.start()
    for error in errors[:2]:
        alone.error(**error)
    assert (cause := alone.known[1][0].cause) is not None
    assert cause.error == "Hang"


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_what_failed_first_is_read_last_and_once_more_at_the_next_start(
    pool: RankPool, recipe_in, tmp_path: Path
) -> None:
    words, ranks = [str(recipe_in(tmp_path)), *STEPS_12], tmp_path / "run/ranks"
    cause = f"rank 1: KeyError: 'missing'; its traceback is in {ranks}/rank-00001.jsonl"
    consequence = f"rank 0 ended because another rank, or the network, failed: {cause}"
    last = f"the last start (attempt %d) ended as error at step 3: {cause}"

    done = launch(["fails_on_rank_1", *words], 2, program="support.jobs.faulty_program")
    assert done.status == 1  # the launcher's own
    assert inspect(["attempts", str(tmp_path / "run"), "--last"]) == 70
    assert done.output.splitlines()[-2] == cause
    assert re.findall("^rank 0.*", done.output, re.MULTILINE) == [consequence]
    assert "gloo" not in done.output
    assert done.output.count("Traceback (most recent call last)") == 1  # the launcher's
    (of_rank_0,) = lines(ranks / "rank-00000.jsonl")
    assert (of_rank_0["class"], of_rank_0["step"]) == ("peer", 3)
    assert lines(tmp_path / "run/attempts.jsonl")[-1]["exit"] == "peer"

    killed = pool.run(2, DDP, words, fault="fails_on_rank_1+killed_on_rank_0")
    assert killed.statuses == (137, 70)
    assert killed.outputs[0].splitlines()[0] == last % 1
    assert cause not in killed.outputs[0].replace(last % 1, "")
    assert cause in killed.outputs[1].splitlines()
    assert "exit" not in lines(tmp_path / "run/attempts.jsonl")[-1]

    done = pool.run(2, DDP, words)
    assert done.statuses == (0, 0), done.output
    assert inspect(["attempts", str(tmp_path / "run"), "--last"]) == 0
    assert done.output.count(cause) == done.outputs[0].count(last % 2) == 1
