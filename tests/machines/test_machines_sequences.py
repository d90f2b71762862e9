"""Sequence files, proposals and trackers of other people.

The promises of these rows have lighter tests: `test_data_bad_records.py`, `test_data_build_parts.py`,
`test_pretrain_choice.py`, `test_pretrain_course.py`.
"""

import json
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from pretrain.card.text import how_to_load
from support.launching import Launched
from support.other_machines import Row, table

BUILD = ("-m", "data", "build", "x.fasta", "--store-dir", "s")
CONTIG = """\
LOCUS       {name}         900 bp    DNA              UNK 01-JAN-1980
DEFINITION  a contig.
ACCESSION   {name}
VERSION     {name}
FEATURES             Location/Qualifiers
     {kind}             1..90
                     /locus_tag="{name}_1"
{translation}ORIGIN
        1 atgatgatga
//
"""
TRANSLATION = '                     /translation="MKTAYIAKQRQISFVKSHFSRQ"\n'


def changed(change: Callable[[str, str], str]) -> Callable[[Path], object]:
    """Writes x.fasta: what `change` makes of the header and the letters of each protein of ok.fasta."""

    def write(folder: Path) -> None:
        lines = (folder / "ok.fasta").read_text().split("\n")
        (folder / "x.fasta").write_text("".join(map(change, lines[:-1:2], lines[1::2])))

    return write


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def contigs(*names: str) -> str:
    """Contigs of a draft genome, of which the second has an rRNA alone."""
    kinds = ("CDS ", "rRNA", "CDS ")
    return "".join(
        CONTIG.format(name=name, kind=kind, translation=TRANSLATION if kind == "CDS " else "")
        for name, kind in zip(names, kinds, strict=False)
    )


def many_small(folder: Path) -> None:
    (folder / "many").mkdir()
    for number in range(100):
        (folder / f"many/{number:03}.fasta").write_text(f">p{number}\nMKTAYIAKQR\n")


def of_a_large_corpus(folder: Path) -> None:
    drawn = random.Random(0)
    proteins = ("".join(drawn.choices("ACDEFGHIKLMNPQRSTVWY", k=drawn.randint(50, 500))) for _ in range(20_000))
    (folder / "x.fasta").write_text("".join(f">p{i}\n{protein}\n" for i, protein in enumerate(proteins)))


def validation_is_a_twentieth(folder: Path, ended: Launched) -> None:
    found = re.search(r"about ([\d.]+) (hours|days) .*of which validation ([\d.]+) (\w+)", ended.output)
    assert found, ended.output
    units = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
    whole, validation = (
        float(number) * units[unit.rstrip("s")] for number, unit in ((found[1], found[2]), (found[3], found[4]))
    )
    assert validation <= 0.05 * 100 * 3600
    assert whole <= 1.02 * 100 * 3600  # as it is rounded


def no_user_namespace() -> str:
    done = subprocess.run(["unshare", "-U", "--map-user=12345", "true"], capture_output=True, text=True)
    return f"no right to be another user ({done.stderr.strip()})" if done.returncode else ""


def one_id(folder: Path, ended: Launched) -> None:
    run_id = json.loads((folder / "runs/t/run.json").read_text())["id"]
    assert list((folder / "runs/t/wandb").glob(f"offline-run-*-{run_id}"))


def needs_are_said(folder: Path, ended: Launched) -> None:
    assert "transformers>=5.17" in "\n".join(how_to_load("AutoModelForMaskedLM", is_modern=True))


ROWS = [
    Row(
        fault=4,
        situation="DNA chains in a file of the PDB",
        prepare=changed(lambda header, letters: f"{header}\n{letters}\n{header}_B mol:na length:8  DNA\nCGCGAATT\n"),
        slow=True,
        words=BUILD,
        status=2,
        says=(r"record 2 \('p0_B mol:na length:8  DNA'\) holds nucleotides .*--max-bad-fraction",),
    ),
    Row(
        fault=4,
        situation="DNA chains in a file of the PDB, with a budget",
        prepare=changed(lambda header, letters: f"{header}\n{letters}\n{header}_B|DNA (5'-D(*CP*G)-3')|\nCG\n"),
        slow=True,
        words=(*BUILD, "--max-bad-fraction", "0.5"),
        says=(r"records      60\n", r"left out     60 records: 60 nucleotides: "),
    ),
    Row(
        fault=5,
        situation="contigs without proteins in a draft genome",
        prepare=text("x.gbk", contigs("c1", "c2", "c3")),
        slow=True,
        words=("-m", "data", "build", "x.gbk", "--store-dir", "s"),
        says=(r"records      2\n", r"left out     1 record: 1 contig without proteins: "),
    ),
    Row(
        fault=6,
        situation="stop codons of gffread",
        prepare=changed(lambda header, letters: f"{header}\n{letters}.\n"),
        slow=True,
        words=BUILD,
        says=(r"records      60\nresidues     5,400\n",),
    ),
    Row(
        fault=6,
        situation="stop codons of gffread inside",
        prepare=changed(lambda header, letters: f"{header}\n{letters[:45]}.{letters[45:]}\n"),
        slow=True,
        words=BUILD,
        status=2,
        says=(r"record 1 \('p0'\) has '\.' at residue 46, a stop codon inside the protein",),
        never=("Traceback", "remove the gaps"),
    ),
    Row(
        fault=7,
        situation="wandb without a home folder",
        needs=no_user_namespace,
        shell='chmod -R a+rwX . && unshare -U --map-user=12345 env -u HOME "$@"',
        environment={"WANDB_SILENT": "true"},
        slow=True,
        words=("-m", "pretrain", "tiny.toml", 'run.trackers=["wandb"]'),
        says=(r"wandb sync \S*wandb/offline-run-\*",),
        check=one_id,
    ),
    *(
        Row(
            fault=10,
            situation=f"the word {word} in a table",
            prepare=text("x.csv", f"id,sequence\np1,MKTAYI\np2,{word}\n"),
            slow=True,
            words=("-m", "data", "build", "x.csv", "--store-dir", "s"),
            status=2,
            says=(rf"record 2 \('p2'\) has '{word}', a word for a missing value",),
        )
        for word in ("NA", "None")
    ),
    Row(
        fault=13,
        situation="many small files",
        prepare=many_small,
        slow=True,
        words=("-m", "data", "build", "many/*.fasta", "--store-dir", "s"),
        says=(r"records      100\n",),
    ),
    Row(
        fault=14,
        situation="a proposal for days on a CPU",
        prepare=of_a_large_corpus,
        slow=True,
        words=("-m", "pretrain", "x.fasta", "--plan", "--untimed", "--hours", "100"),
        check=validation_is_a_twentieth,
    ),
    Row(
        fault=17,
        situation="steps without targets",
        prepare=changed(lambda header, letters: f"{header}\n{letters}\n" + f"{header}x\n{'X' * 126}\n" * 100),
        slow=True,
        words=(
            "-m",
            "pretrain",
            "tiny.toml",
            'data.sources=["x.fasta"]',
            "run.log_every=1",
            "schedule.total_tokens=10_000",
        ),
        says=(r"\| loss - \|",),
        never=("Traceback", r"loss nan", r"lower schedule\.peak_lr"),
    ),
    Row(
        fault=21,
        situation="a name that Prokka wrote into the length",
        prepare=text(
            "x.gbk", contigs("c1", "c2", "c3").replace("c1         900 bp", "NODE_1_length_145000_cov_21.7145000 bp")
        ),
        slow=True,
        words=("-m", "data", "build", "x.gbk", "--store-dir", "s"),
        says=(r"records      2\n",),
    ),
    Row(fault=28, situation="an ESM C where transformers is older", check=needs_are_said),
]


@table(ROWS)
def test_row(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)
