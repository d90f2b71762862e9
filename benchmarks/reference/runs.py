"""The runs: engine, processes and what each changes of its recipe; and what is written down of a finished one.

In: a folder. Out: hashes and numbers of a run. Kept: the run directories, in that folder.
"""

import csv
import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.launch import launched
from zymogen.trainer.checkpoint.load import newest_valid
from zymogen.trainer.checkpoint.reader import read_tensors

FOLDER = Path(__file__).parent
MODERN = ("model.preset=modern_60k",)
LOGGED = ("loss", "grad_norm", "validation")
"""What is compared of each line of metrics.jsonl; the rest of it is times and speeds."""
TIMES = ("seconds",)
"""Keys of scores.json that are times."""
_LETTERS = "ACDEFGHIKLMNPQRSTVWY"
_VARIANTS = 120


class Run(NamedTuple):
    """One of the runs."""

    engine: str
    """A file of accelerate_configs/."""
    processes: int
    overrides: tuple[str, ...] = ()
    program: str = "pretrain"
    """The module that is launched; its recipe has the same name."""

    @property
    def recipe(self) -> Path:
        """The file beside this one that it reads."""
        return FOLDER / f"{self.program}.toml"


RUNS = {
    "ddp": Run("ddp", 2),
    "muon": Run("ddp", 3, (*MODERN, "optimizer.name=muon", "model.dropout=0.1")),
    "fsdp2": Run("fsdp2", 2, MODERN),
    "zero3": Run("zero3", 3),
    "context": Run("ddp", 2, (*MODERN, "parallel.context=2")),
    "stream": Run("single", 1, ("data.streaming=true",)),
    "lora": Run("single", 1, program="finetune"),
}


def record(name: str, folder: Path, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train one of `RUNS` and write down what it left.

    Args:
        name: of the run.
        folder: where its directory, stores and table are made.
        overrides: settings on top of those of the run.
    """
    run, directory = RUNS[name], folder / name
    words = [run.program, str(run.recipe), f"run.directory={directory}", f"data.store_dir={folder / f'{name}-stores'}"]
    if run.program == "finetune":
        words.append(f"data.table={write_table(folder / 'assay.csv')}")
    launched(run.engine, run.processes, *words, *run.overrides, *overrides)
    return facts(directory)


def facts(directory: Path) -> dict[str, Any]:
    """Hashes and numbers of a finished run."""
    checkpoint = newest_valid(directory / "checkpoints", writer=False)
    if checkpoint is None:
        raise FileNotFoundError(f"{directory} has no checkpoint")
    files = {
        str(path.relative_to(directory)): _sha256(path.read_bytes())
        for pattern in ("predictions.csv", "export/model.safetensors", "bundle/model.safetensors")
        for path in directory.glob(pattern)
    }
    lines = map(json.loads, (directory / "metrics.jsonl").read_text("utf-8").splitlines())
    logged = [{key: line[key] for key in LOGGED if key in line} for line in lines]
    scores = directory / "scores.json"
    return {
        "step": checkpoint.trainer.step,
        "checkpoints": len(list((directory / "checkpoints").glob("step-*"))),
        "chain": checkpoint.trainer.chain,
        "weights": weights_sha256(read_tensors(checkpoint, "model")),
        "files": files,
        "metrics": dict(_numbers([line for line in logged if line])),
        "scores": dict(_numbers(json.loads(scores.read_text("utf-8")))) if scores.exists() else {},
    }


def weights_sha256(weights: dict[str, torch.Tensor]) -> str:
    """SHA-256 of name and float32 bytes of all weights, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + b"\0")
        digest.update(weights[name].detach().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_table(path: Path) -> Path:
    """A table of single and double mutants of a random protein, whose labels are a sum over their mutations."""
    rng = random.Random(11)
    wild_type = rng.choices(_LETTERS, k=60)
    effects = [{letter: rng.gauss(0, 1) for letter in _LETTERS} for _ in wild_type]
    with path.open("w", newline="", encoding="ascii") as file:
        writer = csv.writer(file)
        writer.writerow(["sequence", "activity", "part"])
        for number in range(_VARIANTS):
            residues = list(wild_type)
            for position in rng.sample(range(len(wild_type)), 1 + number % 2):
                residues[position] = rng.choice(_LETTERS)
            activity = sum(effects[place][letter] for place, letter in enumerate(residues))
            part = ("train", "train", "train", "validation", "test")[number % 5]
            writer.writerow(["".join(residues), f"{activity:.4f}", part])
    return path


def _numbers(content: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a JSON value under its path, such as `0.loss`, except times."""
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            if key in TIMES:
                continue
            yield from _numbers(value, f"{name}.{key}" if name else str(key))
    elif isinstance(content, int | float):
        yield name, content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def one_thread() -> None:
    """Let each process that is launched compute with one thread, as sums depend on their number."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
