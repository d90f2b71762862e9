"""Embeddings: the vectors that transformers gives, each sequence once, whole after any interruption."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, EsmModel

from finetune.embed import job as jobs
from finetune.embed import plan
from finetune.embed import table as tables
from finetune.embed.__main__ import _options, compute_type, main
from finetune.embed.table import EmbeddingParts
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from pretrain.model.weights import io as transformers_io
from support.inputs.flat_batches import perturb
from support.inputs.token_stores import proteins
from support.jobs import embedding_job
from support.kept_runs import config
from support.launching import DDP, run
from support.rank_pool import RankPool
from zymogen.command_line.parser import CommandParser

SHAPE = EsmShape(layers=2, dim=48, heads=4)
PROTEINS = [*proteins(23), ("again p3", proteins(23)[3][1]), ("p0", proteins(23)[0][1])]
"""25 records, two of which repeat a sequence and one an id."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    ours = MaskedLanguageModel(SHAPE)
    perturb(ours)
    transformers_io.save(ours, folder)
    return folder


@pytest.fixture
def embed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Embeds proteins in small parts and row groups; the table."""
    monkeypatch.setattr(plan, "PART_TOKENS", 100)
    monkeypatch.setattr(tables, "ROW_GROUP_ROWS", 7)

    def embedded(*options: object, name: str = "out.parquet", status: int = 0, of: object = PROTEINS) -> Path:
        path = tmp_path / "in.fasta"
        if of is not None:
            text = "".join(f">{header}\n{letters}\n" for header, letters in of)  # type: ignore[attr-defined]
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
        out = tmp_path / name
        assert main([str(model), str(path), str(out), *map(str, options)]) == status
        return out

    return embedded


def rows_of(path: Path, layer: int = 2) -> list[NDArray[Any]]:
    return [np.array(each) for each in pq.read_table(path)[f"layer_{layer}"].to_pylist()]


@pytest.fixture(scope="module")
def theirs(model: Path) -> Callable[[str], list[NDArray[np.float32]]]:
    """For each layer ``(residues + 2, D)`` of a sequence by itself, as transformers computes it."""
    encoder = EsmModel.from_pretrained(model, add_pooling_layer=False)
    encoder.train(False)
    tokenizer = AutoTokenizer.from_pretrained(model)

    @torch.no_grad()
    def computed(letters: str) -> list[NDArray[np.float32]]:
        caught: list[torch.Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, arguments: caught.append(arguments[0]))
            for layer in encoder.encoder.layer
        ]
        last = encoder(**tokenizer([letters], return_tensors="pt")).last_hidden_state
        for hook in hooks:
            hook.remove()
        return [each[0].numpy() for each in (*caught, last)]

    return computed


def off(ours: NDArray[Any], reference: NDArray[Any]) -> float:
    """Largest difference over the largest magnitude."""
    return float(np.abs(ours - reference).max() / np.abs(reference).max())


@pytest.mark.parametrize("pooling", ["mean", "begin", "residue"])
def test_vectors_are_those_of_transformers(
    embed: Callable[..., Path], theirs: Callable[[str], list[NDArray[np.float32]]], pooling: str
) -> None:
    out = embed("--pooling", pooling, "--layers", 2, 0, 1)
    found = pq.read_table(out)
    assert found.column_names == ["id", "residues", "layer_2", "layer_0", "layer_1"]
    assert found["id"].to_pylist() == [header.split()[0] for header, _ in PROTEINS]
    assert found["residues"].to_pylist() == [len(letters) for _, letters in PROTEINS]
    assert pq.ParquetFile(out).num_row_groups > 4
    for layer in (0, 1, 2):
        for (_, letters), ours in zip(PROTEINS, rows_of(out, layer), strict=True):
            whole = theirs(letters)[layer]
            expected = {"mean": whole[1:-1].mean(0), "begin": whole[0], "residue": whole[1:-1]}[pooling]
            assert ours.shape == expected.shape
            assert off(ours, expected) < 1e-5
            if pooling == "mean":  # which a mean over all tokens is not
                assert off(ours, whole.mean(0)) > 1e-3


def test_float16_is_float32_rounded(embed: Callable[..., Path]) -> None:
    wide, half = embed(), embed("--dtype", "float16", name="half.parquet")
    field = pq.read_schema(half).field("layer_2")
    assert str(field.type) == "fixed_size_list<element: halffloat>[48]"
    for one, other in zip(rows_of(wide), rows_of(half), strict=True):
        assert np.array_equal(one.astype(np.float16), other.astype(np.float16))
    assert any(not np.array_equal(one, other) for one, other in zip(rows_of(wide), rows_of(half), strict=True))


def test_the_last_line_counts_what_was_computed(embed: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    out = embed()
    tokens = sum(len(letters) + 2 for _, letters in PROTEINS)
    said = capfd.readouterr().out
    assert f"{out}: 25 sequences; {tokens:,} tokens in " in said
    assert said.strip().endswith("tokens/s, computed in float32")


@pytest.mark.parametrize(
    ("asked", "device", "precision", "taken"),
    [
        ("auto", "cuda", "bf16", "bfloat16"),
        ("auto", "cuda", "no", "float32"),
        ("auto", "cuda", "fp16", "float32"),
        ("auto", "cpu", "bf16", "float32"),
        ("bfloat16", "cpu", "no", "bfloat16"),
        ("float32", "cuda", "bf16", "float32"),
    ],
)
def test_compute_is_that_of_the_launch_on_a_gpu(asked: str, device: str, precision: str, taken: str) -> None:
    engine: Any = SimpleNamespace(device=torch.device(device), precision=precision)
    parser = CommandParser()
    _options(parser)
    assert parser.parse_args(["m", "in", "out"]).compute == "auto"
    assert compute_type(asked, engine) == taken


def test_a_long_sequence_is_read_in_windows(
    embed: Callable[..., Path], theirs: Callable[[str], list[NDArray[np.float32]]], capfd: pytest.CaptureFixture[str]
) -> None:
    letters = proteins(60, 4)[0][1] + proteins(60, 4)[1][1]
    long = [("long", letters), ("short", "MKVLAW")]
    embed("--max-tokens", 32, status=78, of=long)
    assert "1 of 2 sequences have more than the 30 residues that --max-tokens 32 allows" in capfd.readouterr().err
    out = embed("--max-tokens", 32, "--too-long", "windows", "--pooling", "residue", of=long)
    found = rows_of(out)
    assert found[0].shape == (len(letters), 48)
    # The first window has the begin token and no end token: its residues are those of a text without an end.
    assert off(found[1], theirs("MKVLAW")[2][1:-1]) < 1e-5
    assert off(found[0], theirs(letters)[2][1:-1]) > 1e-3
    mean = rows_of(embed("--max-tokens", 32, "--too-long", "windows", of=long, name="mean.parquet"))
    assert off(mean[0], found[0].mean(0)) < 1e-5


@pytest.mark.parametrize("pooling", [pytest.param("mean", marks=pytest.mark.slow), "residue"])
def test_stopped_at_ten_points_it_ends_with_the_same_bytes(
    embed: Callable[..., Path], pooling: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = embed("--pooling", pooling, name="whole.parquet").read_bytes()
    out, write = tmp_path / "out.parquet", EmbeddingParts.write
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    written: list[int] = []
    left = 0

    def once(parts: EmbeddingParts, number: int, vectors: NDArray[Any]) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        write(parts, number, vectors)
        written.append(number)

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddingParts, "write", once)
        for _ in range(10):
            left = 1
            embed("--pooling", pooling, status=130)
            assert not out.exists()
    assert written == list(range(10))  # none is computed again
    again: list[int] = []

    def counted(parts: EmbeddingParts, number: int, vectors: NDArray[Any]) -> None:
        again.append(number)
        write(parts, number, vectors)

    monkeypatch.setattr(EmbeddingParts, "write", counted)
    # Damage of a part that was finished: it is computed again, and the others are not.
    (work,) = tmp_path.glob(".out.parquet.embedding/parts-*")
    damaged = work / "part-000004.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x07")
    (work / "part-000006.json").write_text("{")
    embed("--pooling", pooling)
    assert again[:3] == [4, 6, 10]
    assert out.read_bytes() == whole
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_parts_of_another_embedding_are_not_taken(
    embed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = embed("--pooling", "begin", name="whole.parquet").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "write_table", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        embed(status=130)
    assert len(list(tmp_path.glob(".out.parquet.embedding/parts-*"))) == 1
    assert embed("--pooling", "begin").read_bytes() == whole


def test_a_finished_table_is_left_alone(embed: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    out = embed()
    content = out.read_bytes()
    embed()
    assert "out.parquet: it is whole already" in capfd.readouterr().out
    assert out.read_bytes() == content
    embed("--pooling", "begin", status=78)
    assert "out.parquet exists, of other pooling; give another name" in capfd.readouterr().err
    assert not out.with_name(".out.parquet.embedding").exists()
    embed("--pooling", "begin", "--overwrite")
    assert out.read_bytes() != content


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--layers", 3), "--layers 3: .*tiny has 2 layers; give numbers from 0, the embedding, to 2"),
        (("--layers", 1, 1), "--layers 1 1: give each layer once"),
        (("--max-tokens", 7), "--max-tokens 7: give at least 8"),
        (("--base", "x"), "--base x: .*tiny is no bundle, so it has all of its weights"),
    ],
)
def test_wrong_options_are_refused(
    embed: Callable[..., Path],
    options: tuple[object, ...],
    said: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    embed(*options, status=78)
    assert re.search(said, capfd.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["in.fasta"]


def test_records_that_are_no_proteins_are_left_out_where_that_is_asked(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "id,sequence\na,MKTAY\nb,MK1\nc,\nd,MKV\n"
    (tmp_path / "in.csv").write_text(text)
    command = [str(model), str(tmp_path / "in.csv"), str(tmp_path / "out.parquet")]
    assert main(command) == 78
    said = capfd.readouterr().err
    assert "record 2 ('b') has '1' at residue 3" in said
    assert (
        "set --unknown-letters count to read such letters as <unk>. To leave such records out, set --max-bad-" in said
    )
    assert "data." not in said
    assert main([*command, "--max-bad-fraction", "0.5"]) == 0
    assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == ["a", "d"]
    (tmp_path / "in.xlsx").write_bytes(b"PK")
    assert main([str(model), str(tmp_path / "in.xlsx"), str(tmp_path / "o.parquet")]) == 78
    assert "sheets of .xlsx files are not read as sources; save the sheet as .csv" in capfd.readouterr().err
    (tmp_path / "in.csv").write_text("id,heavy,light\na,MKTAY,MKV\n")
    assert main([str(model), str(tmp_path / "in.csv"), str(tmp_path / "o.parquet")]) == 78
    assert "Name one with '?sequence=COLUMN'; two chains are two sources" in capfd.readouterr().err
    (tmp_path / "in.fasta").write_text("".join(f">{n}\nMKTAYIAKQRQISFVKSHFS\n{'SO' * 10}\n" for n in range(4)))
    assert main([str(model), str(tmp_path / "in.fasta"), str(tmp_path / "o.parquet")]) == 78
    assert "labels stand below the sequences" in capfd.readouterr().err


def test_wrong_files_are_refused(
    embed: Callable[..., Path], model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: object) -> str:
        assert main([str(word) for word in words]) == 78
        return capfd.readouterr().err

    (tmp_path / "in.fasta").write_text(">a\nMKV\n")
    assert "written as Parquet" in refused(model, tmp_path / "in.fasta", tmp_path / "out.csv")
    assert "is no folder; make it" in refused(model, tmp_path / "in.fasta", tmp_path / "nowhere" / "out.parquet")
    nowhere = refused(tmp_path / "x", tmp_path / "in.fasta", tmp_path / "o.parquet")
    assert "no transformers model can be read there" in nowhere
    assert "none.fasta" in refused(model, tmp_path / "none.fasta", tmp_path / "o.parquet")
    (tmp_path / "o.parquet").write_text("notes")
    assert "o.parquet exists, and is no embedding" in refused(model, tmp_path / "in.fasta", tmp_path / "o.parquet")
    assert (tmp_path / "o.parquet").read_text() == "notes"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.fasta", "o.parquet"]


def test_a_number_that_float16_does_not_hold_is_refused(
    embed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    embedder = jobs.Embedder.__call__

    def large(self: Any, *arguments: Any) -> NDArray[np.float32]:
        found = embedder(self, *arguments)
        found[arguments[1] == 1, 0, 5] = 70_000
        return found

    monkeypatch.setattr(jobs.Embedder, "__call__", large)
    embed("--dtype", "float16", status=78)
    assert "'p1' has a number of 7e+04 in layer 2, and float16 ends at 65,504" in capfd.readouterr().err


@pytest.mark.launch
@pytest.mark.xdist_group("finetune")
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.prove)])
def test_several_processes_write_what_one_does_and_go_on_after_a_kill(
    pool: RankPool, model: Path, tmp_path: Path, processes: int
) -> None:
    path = tmp_path / "in.fasta"
    path.write_text("".join(f">{header}\n{letters}\n" for header, letters in proteins(2_000)))
    one, several, killed = (tmp_path / f"{name}.parquet" for name in ("one", "several", "killed"))
    done = pool.run(1, config("single"), [model, path, one], program=embedding_job.__name__)
    assert done.status == 0, done.output
    done = pool.run(processes, config("ddp"), [model, path, several], program=embedding_job.__name__)
    assert done.status == 0, done.output
    assert done.output.count("2,000 sequences") == 1
    assert several.read_bytes() == one.read_bytes()

    def has_parts() -> bool:
        return any(tmp_path.glob(".killed.parquet.embedding/parts-*/*.json"))

    words = [model, path, killed]
    pool.run_and_kill(processes, config("ddp"), words, has_parts, program=embedding_job.__name__)
    assert not killed.exists()
    done = pool.run(processes, config("ddp"), words, program=embedding_job.__name__)
    assert done.status == 0, done.output
    assert re.search(r"; \d+ of \d+ parts were there; ", done.output)
    assert killed.read_bytes() == one.read_bytes()


@pytest.mark.launch
def test_the_launcher_starts_it(model: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "in.fasta", tmp_path / "out.parquet"
    path.write_text("".join(f">{header}\n{letters}\n" for header, letters in PROTEINS))
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(DDP), "--num_processes", "2"]
    done = run([*launcher, "-m", "finetune.embed", str(model), str(path), str(out)])
    assert done.status == 0, done.output
    assert done.output.count("25 sequences; ") == 1
    assert pq.read_table(out)["id"].to_pylist() == [header.split()[0] for header, _ in PROTEINS]
