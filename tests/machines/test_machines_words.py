"""Messages that fit what other people type, and that say what to do."""

import json
from pathlib import Path

import pytest

from data.sources.fasta_text import from_first_record
from pretrain.proposal.options import ProposalOptions
from support.launching import Launched
from support.other_machines import Row, table
from zymogen.trainer.run.run_json import FORMAT


def many(folder: Path) -> None:
    lines = "".join(line + "\n" for line in (folder / "ok.fasta").read_text().split("\n")[:4])
    (folder / "many").mkdir()
    for number in range(40):
        (folder / "many" / f"sequences-of-plate-{number:04}.fasta").write_text(lines.replace(">", f">{number}_"))


def few_lines(most: int):
    def check(folder: Path, ended: Launched) -> None:
        assert ended.output.count("sequences-of-plate") <= most, ended.output

    return check


def refused(line: str, remedy: str):
    def check(folder: Path, ended: Launched) -> None:
        said = rf"^other: not FASTA: the first line is .*starts with '>'\. It is .*{remedy}"
        with pytest.raises(ValueError, match=said):
            from_first_record(iter([f"\n{line}\nmore of it\n".encode()]), "other")

    return check


def moved(folder: Path) -> None:
    """A run whose recipe was proposed, and whose file has another name since."""
    (folder / "runs/r").mkdir(parents=True)
    (folder / "runs/r/run.json").write_text(json.dumps({"format": FORMAT}))
    (folder / "runs/r/recipe.toml").write_text('[run]\ndirectory = "runs/r"\n[data]\nsources = ["before.fasta"]\n')


def spaced(folder: Path) -> None:
    (folder / "spaced.csv").write_text("id, sequence, note\np1, MKTAYIAKQRQISFVK, x\np2, MKTAYIAKQRQISFVA, y\n")


REMEDIES = {
    "ID   X56734; SV 1; linear; mRNA; STD; PLN; 1859 BP.": "EMBL: convert it with Bio.SeqIO to GenBank",
    "ID   CYC_BOVIN               Reviewed;         105 AA.": "UniProt: give it the suffix .dat",
    "LOCUS       SCU49845     5028 bp    DNA": "GenBank: give it the suffix .gb",
    "##gff-version 3": "GFF, which has no sequences: .*gffread -y",
    " 5 42": "PHYLIP format: .*remove the gaps",
    "CLUSTAL W (1.82) multiple sequence alignment": "Clustal format: .*remove the gaps",
    "#NEXUS": "NEXUS format",
    "# STOCKHOLM 1.0": "Stockholm: give it the suffix .sto",
    "data_1A8O": "mmCIF structure: .*cif-seqres",
    "HEADER    VIRAL PROTEIN                           27-MAR-98   1A8O": "PDB structure: .*pdb-seqres",
    "@read1": "perhaps FASTQ",
}

ROWS = [
    Row(
        fault=23,
        situation="40 files by a glob of the shell",
        prepare=many,
        shell='"$@" many/*.fasta --plan --untimed',
        words=("-m", "pretrain"),
        says=(r"corpus +many/[^:]+\s+and\s+37\s+more:\s+80\s",),
        check=few_lines(3),
    ),
    *(
        Row(fault=30, situation=f"{line.split()[0]} as FASTA {number}", check=refused(line, remedy))
        for number, (line, remedy) in enumerate(REMEDIES.items())
    ),
    Row(
        fault=30,
        situation="header of a CSV with spaces",
        prepare=spaced,
        words=("-m", "data", "head", "spaced.csv", "--store-dir", "s"),
        says=(r">p1\nMKTAYIAKQRQISFVK\n>p2\nMKTAYIAKQRQISFVA\n",),
    ),
    Row(
        fault=30,
        situation="dynamo backend in the environment",
        slow=True,
        environment={"ACCELERATE_DYNAMO_BACKEND": "inductor"},
        words=("-m", "pretrain", "tiny.toml"),
        status=78,
        says=(r"error: .*dynamo_backend.*unset ACCELERATE_DYNAMO_BACKEND",),
    ),
    Row(
        fault=29,
        situation="file of a proposed run was moved",
        prepare=moved,
        words=("-m", "pretrain", "ok.fasta", "--plan", "--untimed", "run.directory=runs/r"),
        status=78,
        says=(
            r"runs/r is the directory of a run on before\.fasta: choose another for ok\.fasta with run\.directory",
            r"; or, if its files were moved, continue it: \S+ -m pretrain runs/r/recipe\.toml ",
            r"recipe\.toml 'data\.sources=\[.ok\.fasta.\]'",
        ),
    ),
]


@table(ROWS)
def test_row(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)


def test_command_with_many_files_names_some() -> None:
    names = tuple(f"f{number}.fasta" for number in range(1000))
    words = ProposalOptions(names, ("run.seed=1",), 60.0).words()
    assert words.endswith("f19.fasta '[and 980 more]' run.seed=1 --minutes 1")
    assert ProposalOptions(names[:20], (), None).words().endswith("f18.fasta f19.fasta")
