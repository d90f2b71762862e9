"""`python -m data`: what each command prints, its exit status, and how it ends when it goes wrong."""

import argparse
import gzip
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from data.__main__ import main
from data.corpus.prepare import prepare_corpora
from data.settings import DataSettings
from data.store.token_store import TokenStore
from support.inputs.seeded_source import until
from support.places import REAL, ROOT

AGALACTIAE = REAL / "orthofinder_M_agalactiae.faa.gz"
PROTEINS = [
    (b"sp|P12345|ONE_HUMAN first \xe9\xff", b"MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPD"),
    (b"two a:b|c", b"GGSX"),
    (b"three", b"MKTAYIAKQR" * 12),
    (b"copy of|two", b"GGSX"),
    (b"gi|7|gb|AAP5.2| five", b"UOBZW"),
]


def fasta_text(proteins: list[tuple[bytes, bytes]] = PROTEINS, line: int = 60) -> bytes:
    return b"".join(
        b">" + header + b"\n" + b"".join(letters[i : i + line] + b"\n" for i in range(0, len(letters), line))
        for header, letters in proteins
    )


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    path = tmp_path / "proteins.fasta"
    path.write_bytes(fasta_text(line=17))
    return path


@pytest.fixture
def run(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]):
    """Runs a command in this process with stores in a folder of the test: (status, standard output, standard error)."""

    def run_command(*arguments: object, stores: bool = True) -> tuple[int, bytes, str]:
        options = ["--store-dir", str(tmp_path / "stores")] if stores else []
        capfdbinary.readouterr()
        status = main([*map(str, arguments), *options])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return run_command


def started(*arguments: object, **streams: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "data", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, **streams)  # type: ignore[call-overload]


def folder_printed(out: bytes) -> Path:
    return Path(out.decode().splitlines()[0].split(maxsplit=1)[1])


# build --------------------------------------------------------------------------------------------


def test_build_says_what_it_built_and_finds_it_again(run, fasta: Path, tmp_path: Path) -> None:
    status, out, _ = run("build", fasta)
    store = TokenStore(folder_printed(out))
    assert status == 0
    assert store.folder.parent == tmp_path / "stores"
    text = out.decode()
    assert "records      5" in text
    assert "residues     197" in text
    assert f"fingerprint  {store.fingerprint}" in text
    assert "residues/s" in text
    status, again, _ = run("build", fasta)
    assert status == 0
    assert folder_printed(again) == store.folder
    assert "it was there already" in again.decode()
    assert "residues/s" not in again.decode()


def test_a_recipe_finds_the_store_that_was_built(run, fasta: Path, tmp_path: Path) -> None:
    fasta.write_bytes(fasta_text([(b"p%d" % i, b"ACDEFGHIKL"[: i % 10 + 1] * (i + 1)) for i in range(100)]))
    _, out, _ = run("build", fasta)
    proteins = DataSettings(sources=(str(fasta),), store_dir=str(tmp_path / "stores"), validation_fraction=0.3)
    assert prepare_corpora(proteins)[0].folder == folder_printed(out)


def test_build_takes_what_a_recipe_takes(run, fasta: Path) -> None:
    fasta.write_bytes(fasta_text([*PROTEINS, (b"bad", b"MK!")]))
    status, _, err = run("build", fasta)
    assert status == 2
    assert "'bad'" in err
    status, out, _ = run("build", fasta, "--max-bad-fraction", "0.5")
    assert status == 0
    assert "left out     1 record: 1 " in out.decode()
    status, out, _ = run("build", fasta, "--unknown-letters", "count")
    assert status == 0
    assert "records      6" in out.decode()
    assert TokenStore(folder_printed(out)).unknown_letters == {"'!'": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "-"], "'-' is standard input"),
        (["build", "none.fasta"], "none.fasta"),
        (["build", "none.fasta", "--max-bad-fraction", "1.5"], "max_bad_fraction is 1.5"),
        (["head", "none.fasta", "-n", "0"], "-n is 0"),
        (["head", "none.fasta", "-n", "3", "--name", "x"], "-n and --start"),
    ],
)
def test_mistakes_are_one_line(run, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, b"")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


# stats --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stats_of_a_source_and_of_its_store(run, fasta: Path) -> None:
    status, out, _ = run("stats", fasta)
    assert status == 0
    text = out.decode()
    assert "records      5" in text
    assert "duplicates   1 records (20.00 %) equal an earlier one" in text
    found = json.loads(run("stats", fasta, "--json")[1])
    assert (found["records"], found["residues"]) == (5, 197)
    assert run("stats", found["store"], stores=False)[1].decode() == text


@pytest.mark.skipif(not AGALACTIAE.is_file(), reason="no real proteins beside the project (shared/data/pretrain)")
def test_real_proteins(run) -> None:
    status, out, _ = run("stats", AGALACTIAE, "--json")
    assert status == 0
    found = json.loads(out)
    with gzip.open(AGALACTIAE, "rt") as file:
        proteins = [letters for _, letters in SimpleFastaParser(file)]
    assert found["records"] == len(proteins) == 820
    assert found["residues"] == sum(map(len, proteins))
    assert found["duplicates"] == 59
    assert found["distinct_sequences"] == len(set(proteins))
    assert found["composition"]["W"]["count"] == "".join(proteins).count("W")
    status, out, _ = run("head", AGALACTIAE, "--name", "CBH40403.1", "gi|290752288|emb|CBH40259.1|")
    assert status == 0
    assert [line.split(b" ")[0] for line in out.splitlines() if line[:1] == b">"] == [
        b">gi|290752288|emb|CBH40259.1|",
        b">gi|290752432|emb|CBH40403.1|",
    ]


# verify -------------------------------------------------------------------------------------------


def test_verify(run, fasta: Path, tmp_path: Path) -> None:
    store = folder_printed(run("build", fasta)[1])
    status, out, _ = run("verify", store, stores=False)
    assert status == 0
    assert f"ok  tokens.bin {197:>28} bytes" in out.decode()
    assert out.decode().splitlines()[-1] == f"ok: 5 records, fingerprint {TokenStore(store).fingerprint}"
    content = bytearray((store / "headers.bin").read_bytes())
    content[3] ^= 1
    (store / "headers.bin").write_bytes(content)
    status, out, err = run("verify", store, stores=False)
    assert (status, out) == (1, b"")
    assert err.startswith(f"damaged: {store}/headers.bin")
    assert err.count("\n") == 1
    status, _, err = run("verify", tmp_path, stores=False)
    assert status == 2
    assert err == f"error: {tmp_path} is no finished token store: it has no store.json\n"


# head ---------------------------------------------------------------------------------------------


def test_head_prints_what_was_read(run, fasta: Path) -> None:
    assert run("head", fasta)[1] == fasta_text()
    assert run("head", fasta, "-n", "2")[1] == fasta_text(PROTEINS[:2])
    assert run("head", fasta, "--start", "3", "-n", "1")[1] == fasta_text(PROTEINS[3:4])


def test_head_finds_records_by_name(run, fasta: Path) -> None:
    status, out, _ = run("head", fasta, "--name", "AAP5.2", "P12345")
    assert (status, out) == (0, fasta_text([PROTEINS[0], PROTEINS[4]]))
    assert run("head", fasta, "--name", "gi|7|gb|AAP5.2|")[1] == fasta_text(PROTEINS[4:])
    status, out, err = run("head", fasta, "--name", "three", "first", "nobody")
    assert (status, out) == (2, fasta_text(PROTEINS[2:3]))
    assert "has no record named first, nobody" in err


def test_head_of_a_record_that_is_not_there(run, fasta: Path) -> None:
    for arguments in (["--start", "5"], ["--start", "-1"]):
        status, _, err = run("head", fasta, *arguments)
        assert status == 2
        assert "has records 0 to 4" in err


def test_head_prints_unknown_residues_as_x(run, fasta: Path) -> None:
    fasta.write_bytes(b">a\nMJ!K\n")
    assert run("head", fasta, "--unknown-letters", "count")[1] == b">a\nMXXK\n"


def test_head_is_quiet_when_its_reader_leaves(run, tmp_path: Path) -> None:
    path = tmp_path / "many.fasta"
    path.write_bytes(fasta_text([(b"p%d" % i, b"ACDEFGHIKL" * 20) for i in range(3000)]))
    store = folder_printed(run("build", path)[1])
    process = started("head", store, "-n", "3000", stdout=subprocess.PIPE)  # far more than a pipe holds
    assert process.stdout is not None
    assert process.stdout.readline() == b">p0\n"
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_a_connection_that_breaks_is_not_a_reader_that_left(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: argparse.Namespace) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("data.commands.head.run", broken)
    with pytest.raises(BrokenPipeError):
        run("head", "x")


# digest, decontaminate ----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", ["5", "5:5", "7:5", "-1:5", "a:b", "1:2:3", ""])
def test_steps_are_a_range(run, steps: str) -> None:
    status, _, err = run("digest", "none.toml", f"--steps={steps}", stores=False)
    assert status == 2
    assert f"--steps is {steps!r}; write A:B" in err


def test_digest_prints_a_line_for_each_step(run, recipe_in, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    status, out, _ = run("digest", recipe, "--steps", "0:4", "run.seed=3", stores=False)
    assert status == 0
    assert len(set(out.splitlines())) == 4
    later = run("digest", recipe, "run.seed=3", "--steps", "2:4", "--world", "2", stores=False)[1]
    hashes = [line.split()[:3] for line in out.splitlines()]
    assert [line.split()[:3] for line in later.splitlines()] == hashes[2:]
    status, _, err = run("digest", recipe, "--steps", "0:1", "--world", "0", stores=False)
    assert status == 2
    assert "--world is 0; it must be at least 1" in err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mmseqs") is None, reason="MMseqs2 is not installed")
def test_decontaminate_writes_what_a_recipe_excludes(run, fasta: Path, tmp_path: Path) -> None:
    heldout, table = tmp_path / "heldout.fasta", tmp_path / "out.tsv"
    heldout.write_bytes(fasta_text([(b"relative", PROTEINS[0][1][2:] + b"AAA")]))
    status, out, _ = run("decontaminate", "--training", fasta, "--heldout", heldout, "--output", table)
    assert status == 0
    assert "1 of 5 training records are similar to one of 1 held-out records" in out.decode()
    assert "P12345" in table.read_text()


# All commands -------------------------------------------------------------------------------------


def test_help_answers_at_once() -> None:
    """It takes a tenth of a second, as nothing is imported that only a command needs."""
    code = (
        "import sys\nfrom data.__main__ import main\n"
        "commands = ('build', 'stats', 'verify', 'head', 'digest', 'decontaminate')\n"
        "for arguments in ([], *([command, '--help'] for command in commands)):\n"
        "    try: main(arguments)\n    except SystemExit as end: assert end.code == 0\n"
        "print('heavy:', [m for m in ('numpy', 'duckdb', 'matplotlib', 'pydantic', 'fsspec') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "heavy: []"
    assert "--max-bad-fraction" in found.stdout


@pytest.mark.slow
def test_control_c_ends_a_build_and_leaves_nothing_half_built(tmp_path: Path) -> None:
    large, store = tmp_path / "large.fasta", tmp_path / "store"
    large.write_bytes(fasta_text([(b"p", b"ACDEFGHIKL" * 1000)] * 10_000))
    process = started("build", large, "--output", store)
    until(lambda: (store / "tokens.bin").exists())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.stderr is not None
    assert process.stderr.read().decode().endswith("interrupted; the same command continues a build where it stopped\n")
    assert not (store / "store.json").exists()


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(SystemExit) as raised:
        main(["stat", "x"])
    assert raised.value.code == 2
