"""Hostile inputs: each is read rightly, or refused with one error that names the file, the record and a remedy."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from data.__main__ import main
from data.alphabet import decode
from data.store.token_store import TokenStore
from support.inputs.hostile_inputs import ELSEWHERE, INPUTS, PLAIN, TWO, Hostile, Records
from support.places import ROOT

AS_PROCESSES = ("DNA", "csv: a field too many", "UniRef XML", "gzip truncated", "file name that is not UTF-8")


def write(folder: Path, hostile: Hostile) -> str:
    path = folder / hostile.name
    path.write_bytes(hostile.content() if callable(hostile.content) else hostile.content)
    return str(path)


def records(store: TokenStore) -> Records:
    headers = store.headers(0, store.num_records)
    return [(header, decode(store.residues(number))) for number, header in enumerate(headers)]


def without_progress(err: str) -> str:
    """What was written to standard error, less the line of a build that took a slow machine more than two seconds."""
    return re.sub(r"^built the token store: .*\n", "", err, flags=re.MULTILINE)


def judge(hostile: Hostile, path: str, stores: Path, status: int, err: str) -> None:
    """Hold what a build did against what it should have done."""
    err = without_progress(err)
    assert "Traceback" not in err
    if hostile.records is not None:
        assert (status, err) == (0, "")
        (folder,) = stores.iterdir()
        assert records(TokenStore(folder)) == hostile.records
        return
    assert status == 2
    (line,) = err.splitlines()  # one line, and nothing that a library said besides
    assert line.startswith("error: ")
    assert [word for word in (path, *hostile.words) if word not in line] == []
    assert all(character.isprintable() for character in line)
    assert not list(stores.glob("*/*.bin"))


@pytest.mark.parametrize("about", INPUTS)
def test_is_read_rightly_or_refused_in_one_line(tmp_path: Path, about: str, capfd: pytest.CaptureFixture[str]) -> None:
    path, stores = write(tmp_path, INPUTS[about]), tmp_path / "stores"
    status = main(["build", path, "--store-dir", str(stores), *INPUTS[about].options])
    judge(INPUTS[about], path, stores, status, capfd.readouterr().err)


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize("about", AS_PROCESSES)
def test_a_process_of_its_own_says_the_same(tmp_path: Path, about: str) -> None:
    path, stores = write(tmp_path, INPUTS[about]), tmp_path / "stores"
    command = [sys.executable, "-m", "data", "build", path, "--store-dir", str(stores)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    judge(INPUTS[about], path, stores, ended.returncode, ended.stderr.decode())


# What is no file of its own -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("/dev/null", "is standard input, a pipe or a device, which can be read once; write it to a file"),
        ("{folder}", "no finished token store (it has no store.json); name its files, for example"),
        ("{folder}/none.fasta", "check data.sources"),
        ("{folder}/*.fna", "no file matches this pattern; check data.sources"),
    ],
)
def test_places_that_are_no_corpus(tmp_path: Path, place: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    place = place.format(folder=tmp_path)
    assert main(["build", place, "--store-dir", str(tmp_path / "stores")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert place in line
    assert words in line


def test_statistics_of_a_file_whose_name_is_not_utf8(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.fasta")
    path.write_bytes(PLAIN)
    assert main(["stats", str(path), "--store-dir", str(tmp_path / "stores")]) == 0
    out, err = capfd.readouterr()
    assert "records      2" in out
    assert without_progress(err) == ""


def test_a_folder_whose_name_is_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.fasta").write_bytes(PLAIN)
    folder, written = os.fsencode(tmp_path) + b"/caf\xe9", io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8", errors="strict"))  # as in most locales
    assert main(["build", str(tmp_path / "a.fasta"), "--output", os.fsdecode(folder)]) == 0
    assert folder in written.getvalue()


RECIPE = """
[run]
directory = "{folder}/run"
[model]
preset = "esm2_60k"
[data]
sources = ["{folder}/x.fasta"]
clusters = "{folder}/{table}"
store_dir = "{folder}/stores"
validation_fraction = 0.2
bin_tokens = 64
crop_tokens = 32
bins_per_step = 1
window_sequences = 32
[schedule]
peak_lr = 1e-3
total_tokens = 10_000
"""


def digest(folder: Path, table: str, content: bytes) -> int:
    (folder / table).write_bytes(content)
    (folder / "x.fasta").write_bytes(b"".join(b">p%d\nMKTAY%s\n" % (i, b"GA" * i) for i in range(12)))
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder, table=table))
    return main(["digest", str(folder / "recipe.toml"), "--steps", "0:1"])


def test_a_cluster_table_with_mixed_line_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [b"c%d\tp%d" % (i // 2, i) for i in range(12)]
    said = []
    for name, ends in (("one", [b"\n"] * 12), ("mixed", [b"\n", b"\r\n"] * 6)):
        (tmp_path / name).mkdir()
        table = b"".join(row + end for row, end in zip(rows, ends, strict=True))
        assert digest(tmp_path / name, "clusters.tsv", table) == 0
        said.append(capfd.readouterr())
    assert said[0].out == said[1].out != ""
    assert "Traceback" not in said[1].err


def test_a_cluster_table_that_is_packed_otherwise(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert digest(tmp_path, "clusters.tsv.zst", b"\x28\xb5\x2f\xfd" + bytes(20)) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert f"error: {tmp_path}/clusters.tsv.zst: is a zstd file" in line
    assert "read plain or as gzip: unpack it first" in line


def test_what_the_user_has_in_the_output_folder_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("parts/p.fasta", "parts/shard0/p.fasta", "parts/0000/p.fasta", "tokens.bin", "headers.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(PLAIN)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["build", str(tmp_path / "parts" / "*.fasta"), "--output", str(tmp_path)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path} is not empty and no token store")
    assert "choose a folder" in line
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert main(["build", str(tmp_path / "parts" / "*.fasta"), "--output", str(tmp_path / "store")]) == 0
    assert records(TokenStore(tmp_path / "store")) == TWO


@pytest.mark.parametrize("about", ELSEWHERE)
def test_what_is_tested_elsewhere_is(about: str) -> None:
    file, _, test = ELSEWHERE[about].partition("::")
    assert re.search(rf"^def {test}\(", next((ROOT / "tests").rglob(file)).read_text(), re.MULTILINE)
