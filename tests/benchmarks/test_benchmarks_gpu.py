"""`make gpu` without a GPU: everything that a CPU can run does, and whatever goes wrong, earlier rows are kept."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as program
from benchmarks.gpu.machine import Place
from benchmarks.gpu.results import Bar, Finding, Results, Table
from benchmarks.gpu.worker import DEVICE_LOST, Check, run, work
from support.places import ROOT

MAY_BE_ABSENT = ("numba", "accelerate", "deepspeed", "psutil", "safetensors", "transformers", "datasets", "pydantic")
MAY_BE_ABSENT += ("pytest", "isal", "yaml")
ENGINES = ("DDP", "FSDP2", "ZeRO", "context")
BAR = Bar(2.0, "higher", "nothing")


def results_in(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def rows_in(folder: Path) -> dict[str, dict]:
    return {row["row"]: row for row in results_in(folder)["rows"]}


# The whole of it ------------------------------------------------------------------------------------------------------


def dry_run(folder: Path, *words: str, absent: tuple[str, ...] = ()) -> tuple[subprocess.CompletedProcess[str], dict]:
    """What it prints and the JSON of its last line; in all its processes the packages of `absent` are not there."""
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({absent!r}))\n")
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--out", str(folder / "out"), *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["results.md", "results.json"])
def test_results_of_others_are_not_replaced(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text('{"rows": []}')
    assert program.main(["--dry-run", "--out", str(tmp_path)]) == 2
    said = f"error: {tmp_path} has a results.md or results.json that this program did not write; choose another --out\n"
    assert capsys.readouterr().err == said
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, '{"rows": []}')]


IN_CI = ("machine", "peak", "parity", "no waiting in a step", "reading late", "Muon", "float16", "DDP", "speed esm2_8m")
IN_CI += ("bf16 gathers and a save",)
"""Names of checks begin so that need no process of their own, and of two that do."""


@pytest.mark.prove
def test_a_dry_run_of_some_of_it(tmp_path: Path) -> None:
    _, last = dry_run(tmp_path, "--only", *IN_CI)
    rows = rows_in(tmp_path / "out")
    wanted = [check.name for check in all_checks() if check.name.startswith(IN_CI)]
    assert [*dict.fromkeys(row["check"] for row in rows.values())] == wanted
    assert {row["status"] for row in rows.values()} == {"measured", "not measured"}
    assert all(row["holds"] for row in rows.values() if row["bar"] and row["value"] is not None)
    assert len(last["rows"]) == sum(row["bar"] is not None for row in rows.values()) > 15
    assert rows["DDP, one rank"]["holds"]
    assert rows["speed esm2_8m: eager, real tokens/s"]["value"] > 0
    assert "zymogen.trainer.step.train_step" in rows["no waiting in a step: Muon"]["note"]


def test_all_checks_are_imported_on_a_bare_machine() -> None:
    program = f"import sys\nsys.modules.update(dict.fromkeys({MAY_BE_ABSENT!r}))\nimport benchmarks.gpu.rows\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("absent", [(), MAY_BE_ABSENT], ids=["all", "few"])
def test_a_dry_run_runs_all_that_a_cpu_can(absent: tuple[str, ...], tmp_path: Path) -> None:
    _, last = dry_run(tmp_path, "--budget-s", "560", absent=absent)
    rows = rows_in(tmp_path / "out")
    assert {row["status"] for row in rows.values()} == {"measured", "not measured"}
    assert last["benchmark"] == "gpu"
    assert len(last["rows"]) == sum(row["bar"] is not None for row in rows.values()) > 30
    checks = {row["check"]: row["status"] for row in rows.values()}
    # What a CPU computes is judged there; what is about a GPU's speed is run on tiny shapes, or needs one.
    assert all(
        row["holds"]
        for name, row in rows.items()
        if name.startswith(("parity", "compiled", "Muon", "float16", *ENGINES))
        and row["bar"]
        and row["value"] is not None
    )
    for exchange in ("esm2, ulysses", "esm2, all_gather", "modern, ulysses", "modern, all_gather"):
        assert 0.5 < rows[f"context parallelism, two ranks: {exchange}"]["value"] < 2
        # In the last of two layers, one process on a CPU keeps queries and what they gather for targets alone, and
        # ranks keep all: 5 % of what it would keep otherwise, of which a rank has less than 0.6.
        share = rows[f"context parallelism, two ranks: {exchange}, activations of one rank"]["value"]
        assert 0.5 < share < 0.6 / 0.95
        assert rows[f"context parallelism, one rank on NCCL: {exchange}"]["holds"]
    for engine in ("DDP", "FSDP2"):
        assert rows[f"{engine}, one rank"]["holds"]
        assert rows[f"{engine}, one rank: a step"]["value"] > 0
    assert rows["parity esm2, heads of 16: flash_cpu bfloat16"]["value"] < 3
    assert rows["speed esm2_8m: eager, real tokens/s"]["value"] > 0
    assert rows["speed esm2_8m: MFU, compiled"]["holds"] is None
    assert rows["speed esm2_650m"]["note"] == "needs a GPU"
    assert "checkpointing selective, most slots" in str(list(rows))
    step = rows["no waiting in a step: Muon"]["note"]
    if absent:
        assert "forward, backward, update" in step
        assert rows["times HF esm2_8m"]["note"] == "no transformers and no safetensors here"
        assert rows["logits of EsmForMaskedLM"]["status"] == "not measured"
        assert "torch's parts" in rows["FSDP2, one rank"]["note"]
        assert rows["ZeRO-3, one rank"]["note"] == "no accelerate and no deepspeed here"
    else:
        assert "zymogen.trainer.step.train_step" in step
        for name, engine in (("FSDP2", "fsdp2"), ("ZeRO-2", "zero2"), ("ZeRO-3", "zero3")):
            assert f"zymogen.trainer.engine's {engine}, zymogen.trainer.step" in rows[f"{name}, one rank"]["note"]
            assert rows[f"{name}, one rank"]["holds"]
        assert rows["logits of EsmForMaskedLM"]["holds"]
        assert rows["logits of EsmcForMaskedLM"]["holds"]
        assert rows["times HF esm2_8m: HF, real tokens/s"]["value"] > 0
    assert checks.keys() == {check.name for check in all_checks()}
    table = (tmp_path / "out" / "results.md").read_text()
    assert all(f"| {name} |" in table for name in rows)
    assert "## esm2_8m, eager: where one step's" in table


def all_checks() -> tuple[Check, ...]:
    from benchmarks.gpu.rows import CHECKS

    return CHECKS


def test_names_and_seconds_fit() -> None:
    checks, names = all_checks(), [check.name for check in all_checks()]
    assert len(set(names)) == len(names)
    asked = [name for name in names if name in ("reading late", "speed modern_300m") or name.startswith("speed esm2")]
    assert sum(check.seconds for check in checks[: names.index(asked[-1]) + 1]) <= 460  # --budget-s
    assert sum(check.seconds for check in checks if check.name.startswith(("machine", "peak", "parity"))) < 120
    bars = {check.name: check.bar.value for check in checks if check.bar and check.name.startswith("speed")}
    assert bars == {
        f"speed esm2_{n}": b for n, b in [("8m", 0.2), ("35m", 0.3), ("150m", 0.4), ("650m", 0.5), ("3b", 0.5)]
    }


# One check after the other --------------------------------------------------------------------------------------------


def one(place: Place) -> Iterator[Finding | Table]:
    yield Finding("first", 3.0, "times", "a | b", judged=True)
    yield Table("where time goes", ("kernel", "ms"), (("mm", "3"),))
    yield Finding("second", 1500.0)


def raises(place: Place) -> Iterator[Finding]:
    yield Finding("before", 1.0, judged=True)
    raise ValueError("line one\nline two")


def endless(place: Place) -> Iterator[Finding]:
    yield Finding("before", 1.0)
    while True:
        time.sleep(0.01)


def check(name: str, what, seconds: float = 1, **settings) -> Check:
    return Check(name=name, run=what, seconds=seconds, bar=BAR, on_cpu="judged", **settings)


def test_rows_are_kept_whatever_follows(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    checks = [
        check("raises", raises),
        check("works", one),
        check("lacks", one, needs=("no_such_package", "torch")),
        check("is long", one, seconds=1000),
        Check(name="gpu", run=one, seconds=1),
        Check(name="runs", run=one, seconds=1, bar=BAR, on_cpu="run"),
        check("infinite", lambda place: iter([Finding("", float("inf"), judged=True)])),
    ]
    assert work(checks, tmp_path, time.time() + 100, dry=True) == 0
    rows = rows_in(tmp_path)
    assert list(rows) == [
        *("raises: before", "raises", "works: first", "works: second", "lacks", "is long: first"),
        *("is long: second", "gpu", "runs: first", "runs: second", "infinite"),
    ]
    assert rows["raises"]["status"] == "failed"
    assert re.fullmatch(r"ValueError: line one line two \(test_benchmarks_gpu\.py:\d+\)", rows["raises"]["note"])
    assert [rows[name]["holds"] for name in ("raises: before", "raises", "works: first", "works: second")] == [
        *(False, False, True, None),
    ]
    assert rows["lacks"]["note"] == "no no_such_package here"
    assert rows["gpu"]["note"] == "needs a GPU"
    assert rows["runs: first"] | {"seconds": 0} == {
        **{"check": "runs", "row": "runs: first", "status": "not measured", "value": None, "unit": "times"},
        **{"bar": {"value": 2.0, "better": "higher", "against": "nothing"}, "holds": None, "must_end": None},
        **{"note": "a dry run gave 3; a | b", "seconds": 0},
    }
    assert rows["infinite"]["status"] == "failed"
    markdown = (tmp_path / "results.md").read_text()
    assert "| works: first | 3 times | >= 2, nothing | yes | a \\| b |" in markdown
    assert "| works: second | 1,500 |" in markdown
    assert "## where time goes\n\n| kernel | ms |\n| --- | --- |\n| mm | 3 |" in markdown
    # Another worker of the same folder finds nothing to do, and what it loads is what was written.
    before = (tmp_path / "results.json").read_text()
    assert work(checks, tmp_path, time.time() + 100, dry=True) == 0
    Results.load(tmp_path).write()
    assert (tmp_path / "results.json").read_text() == before
    report = [(row.work, row.ratio, row.holds) for row in Results.load(tmp_path).judged()]
    assert ("raises", None, False) in report
    assert ("lacks", None, None) in report
    assert ("works: first", 3.0, True) in report


def test_a_check_does_not_inherit_tf32(tmp_path: Path) -> None:
    """A step that is set up as a run's leaves it on, and parity is held against float32."""
    seen = []

    def sets_up_a_run(_: Place) -> Iterator[Finding]:
        seen.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high")
        yield Finding("", 1.0)

    results = Results(tmp_path)
    results.plan([("first", None), ("second", None)])
    try:
        for name in ("first", "second"):
            assert run(check(name, sets_up_a_run), Place(torch.device("cpu"), results), 5)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == ["highest", "highest"]


def test_a_check_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    results, before = Results(tmp_path), signal.getsignal(signal.SIGALRM)
    results.plan([("endless", None), ("works", BAR)])
    place = Place(torch.device("cpu"), results)
    assert run(check("endless", endless), place, 0.2)
    assert run(check("works", one), place, 5)
    rows = rows_in(tmp_path)
    assert rows["endless: before"]["value"] == 1
    assert rows["endless"]["note"] == "interrupted after 0.2 s"
    assert rows["works: first"]["holds"]
    assert signal.getsignal(signal.SIGALRM) == before


def test_nothing_begins_that_time_is_too_short_for(tmp_path: Path) -> None:
    assert work([check("late", one)], tmp_path, time.time() + 0.5, dry=True) == 0
    assert "out of time" in rows_in(tmp_path)["late"]["note"]


# A worker that dies ---------------------------------------------------------------------------------------------------

WORKER = """
import os, sys, time
from pathlib import Path
from benchmarks.gpu.results import Finding
from benchmarks.gpu.worker import Check, work

def good(place):
    yield Finding("", 1.0)

def dies(place):
    yield Finding("before", 1.0)
    os._exit({status})

def hangs(place):
    import signal
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(600)
    yield

names = {checks!r}
checks = [Check(name=n, run=globals()[n.split()[0]], seconds={seconds}, on_cpu="judged") for n in names]
sys.exit(work(checks, Path({folder!r}), {deadline}, dry=True))
"""


def worker(folder: Path, checks: list[str], deadline: float, seconds: float = 1, status: int = 70) -> list[str]:
    text = WORKER.format(folder=str(folder), checks=checks, deadline=deadline, seconds=seconds, status=status)
    return [sys.executable, "-c", text]


@pytest.mark.prove
def test_another_worker_goes_on_behind_one_that_dies(tmp_path: Path) -> None:
    deadline = time.time() + 100
    program.supervise(worker(tmp_path, ["good", "dies", "good 2"], deadline, status=DEVICE_LOST), tmp_path, deadline)
    rows = rows_in(tmp_path)
    assert {name: row["status"] for name, row in rows.items()} == {
        **{"good": "measured", "dies: before": "measured", "dies": "failed", "good 2": "measured"},
    }
    assert rows["dies"]["note"] == "its process ended with exit status 70"


@pytest.mark.prove
def test_a_worker_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "GRACE", -20.0)  # a row may run for 20 s more than twice its time: here, a second more
    deadline = time.time() + 100
    program.supervise(worker(tmp_path, ["hangs", "good"], deadline, seconds=0.5), tmp_path, deadline)
    rows = rows_in(tmp_path)
    assert rows["hangs"]["note"] == "its process was ended by signal 9"
    assert rows["good"]["value"] == 1


def test_a_worker_that_never_plans_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with exit status 3 before it had planned its rows"):
        program.supervise([sys.executable, "-c", "import sys; sys.exit(3)"], tmp_path, time.time() + 100)


@pytest.mark.launch
def test_what_is_killed_leaves_whole_files(tmp_path: Path) -> None:
    """SIGKILL to both processes, again and again while they write."""
    text = "from benchmarks.gpu.results import *\nfrom pathlib import Path\n"
    text += f"r = Results(Path({str(tmp_path)!r}), dict(kind='x' * 4000))\nr.plan([('a', None)])\nr.start('a', 0)\n"
    text += "for n in range(10**6):\n"
    text += (
        " r.lines.insert(0, Line('b', f'b: {n}', 'measured', 1.0))\n r.write()\n del r.lines[0 if n % 50 else 1 : -1]\n"
    )
    for seconds in (0.6, 0.7, 0.8):
        process = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT)
        until = time.time() + 30
        while not (tmp_path / "results.json").exists() and time.time() < until:
            time.sleep(0.01)
        time.sleep(seconds - 0.5)
        process.kill()
        process.wait()
        assert any(row["row"] == "a" for row in results_in(tmp_path)["rows"])
        markdown = (tmp_path / "results.md").read_text()
        assert markdown.endswith("|\n")
        assert "| a | running |" in markdown


def test_an_interpreter_without_torch_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(program, "find_spec", lambda name: None if name == "torch" else name)
    assert program.main(["--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sys.executable} has no torch; ")
    assert "make gpu PYTHON=" in said
