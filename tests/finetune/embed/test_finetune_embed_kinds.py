"""Embeddings of an ESM C and in bfloat16; killed processes, full disks, and memory."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer, EsmcModel

from finetune.embed import job as jobs
from finetune.embed import plan
from finetune.embed import table as tables
from finetune.embed.__main__ import main
from finetune.embed.table import EmbeddingParts
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from pretrain.model.weights import io as transformers_io
from support.forked import in_process
from support.inputs.flat_batches import perturb
from support.inputs.token_stores import proteins
from support.launching import environment
from support.places import ROOT

MODERN = EsmShape(layers=2, dim=48, heads=3, architecture="modern", token_dropout=False)
PROTEINS = proteins(23)

MEASURED = """
import sys
from pathlib import Path
from finetune.embed.__main__ import main
model, source, *outs = sys.argv[1:]
for pooling, out in zip(("mean", "residue"), outs, strict=True):
    assert main([model, source, out, "--pooling", pooling]) == 0
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmHWM"].split()[0]) / 1024)  # ru_maxrss would be that of the parent
"""


def fasta(path: Path, count: int = len(PROTEINS)) -> Path:
    path.write_text("".join(f">{header}\n{letters}\n" for header, letters in proteins(count)))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ESM C, as transformers reads it."""
    folder = tmp_path_factory.mktemp("modern") / "tiny"
    ours = MaskedLanguageModel(MODERN)
    perturb(ours)
    transformers_io.save(ours, folder)
    return folder


@pytest.fixture
def embed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Embeds the proteins in small parts and row groups; the table."""
    monkeypatch.setattr(plan, "PART_TOKENS", 100)
    monkeypatch.setattr(tables, "ROW_GROUP_ROWS", 7)
    source = fasta(tmp_path / "in.fasta")

    def embedded(*options: object, name: str = "out.parquet", status: int = 0) -> Path:
        out = tmp_path / name
        assert main([str(model), str(source), str(out), *map(str, options)]) == status
        return out

    return embedded


def rows_of(path: Path, layer: int = 2) -> list[Any]:
    return [np.array(each) for each in pq.read_table(path)[f"layer_{layer}"].to_pylist()]


def largest_off(ours: list[Any], reference: list[Any]) -> float:
    """Largest difference over the largest magnitude."""
    largest = max(np.abs(each).max() for each in reference)
    return float(max(np.abs(a - b).max() for a, b in zip(ours, reference, strict=True)) / largest)


@torch.no_grad()
def test_vectors_of_an_esm_c_are_those_of_transformers(embed: Callable[..., Path], model: Path) -> None:
    encoder = EsmcModel.from_pretrained(model, dtype=torch.float32).train(False)
    tokenizer = AutoTokenizer.from_pretrained(model)
    before_last: list[torch.Tensor] = []
    encoder.layers[1].register_forward_pre_hook(lambda _, arguments: before_last.append(arguments[0]))
    last = [encoder(**tokenizer([letters], return_tensors="pt")).last_hidden_state for _, letters in PROTEINS]
    for pooling, name in (("residue", "each.parquet"), ("mean", "mean.parquet")):
        out = embed("--pooling", pooling, "--layers", 1, 2, name=name)
        for layer, theirs in ((1, before_last), (2, last)):
            inside = [each[0, 1:-1].numpy() for each in theirs]
            reference = [each.mean(0) for each in inside] if pooling == "mean" else inside
            assert largest_off(rows_of(out, layer), reference) < 1e-5


def killed_in(owner: Any, name: str, call: int, *, after: bool) -> Callable[..., Any]:
    """A function of `owner` that kills its process at one of its calls, before it does its work or after."""
    work, calls = getattr(owner, name), 0

    def fatal(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = work(*arguments, **options)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return fatal


@pytest.mark.slow
def test_killed_at_ten_points_it_goes_on_to_the_same_bytes(
    embed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By SIGKILL: while the store is built, in the parts, in the table, and where only the folder is left to remove."""
    whole = embed("--pooling", "residue", name="whole.parquet").read_bytes()
    points = [
        (jobs, "open_or_build", 1, True),
        (EmbeddingParts, "write", 1, False),
        (EmbeddingParts, "write", 1, True),
        ("finetune.embed.table", "flush", 3, False),
        ("finetune.embed.table", "write_atomic", 2, False),
        (jobs.Embedder, "_vectors", 2, True),
        (jobs, "write_table", 1, False),
        (EmbeddingParts, "read", 2, True),
        (jobs, "write_table", 1, True),
    ]
    out = tmp_path / "out.parquet"
    for owner, name, call, after in points:
        place = sys.modules[owner] if isinstance(owner, str) else owner
        if name == "open_or_build":  # imported where it is used
            place = sys.modules["data.store.build"]
        with monkeypatch.context() as patch:
            patch.setattr(place, name, killed_in(place, name, call, after=after))
            assert in_process(lambda: embed("--pooling", "residue")) == -signal.SIGKILL, name
    embed("--pooling", "residue")
    assert out.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.fasta", "out.parquet", "whole.parquet"]


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """A disk that is full for any file above so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("size", "where"), [(10_000, "parts-"), (100_000, "out.parquet: ")], ids=["a part", "table"])
def test_a_full_disk_is_one_line(
    embed: Callable[..., Path], size: int, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = embed("--pooling", "residue", name="whole.parquet").read_bytes()
    assert len(whole) > 100_000
    capfd.readouterr()
    with files_at_most(size):
        out = embed("--pooling", "residue", status=os.EX_IOERR)
    assert not out.exists()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert where in line
    assert "the disk is full, or a quota or size limit reached (" in line
    assert line.endswith("File too large); nothing of it was kept; free space and start again")
    assert embed("--pooling", "residue").read_bytes() == whole


@pytest.mark.prove
def test_memory_does_not_grow_with_the_number_of_proteins(model: Path, tmp_path: Path) -> None:
    peaks = []
    for count in (1_000, 20_000):
        source = fasta(tmp_path / f"{count}.fasta", count)
        outs = [tmp_path / f"{count}-{pooling}.parquet" for pooling in ("mean", "residue")]
        words = [sys.executable, "-c", MEASURED, str(model), str(source), *map(str, outs)]
        done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
        assert [pq.ParquetFile(out).metadata.num_rows for out in outs] == [count] * 2
        peaks.append([float(line) for line in done.stdout.splitlines() if line.replace(".", "").isdigit()])
    print(f"MiB after means, and after residues too: {peaks}")
    for few, many in zip(*peaks, strict=True):
        assert many - few < 100e6 / 2**20
