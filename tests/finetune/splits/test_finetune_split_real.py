"""Splits and audits of real tables: figures that were found independently, and files that have what is difficult."""

import csv
import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from finetune.splits.audit import compare
from finetune.splits.settings import IDENTITIES
from support.inputs.token_stores import store_of
from support.places import REAL

ROOM = REAL.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not REAL.is_dir(), reason="no real assays beside the project (shared/data)"),
]
needs_mmseqs = pytest.mark.skipif(shutil.which("mmseqs") is None, reason="no program 'mmseqs' (apt install mmseqs2)")


def drugban(kind: str, part: str) -> list[str]:
    with gzip.open(ROOM / "ligand" / f"drugban_human_{kind}_{part}.csv.gz", "rt") as file:
        return [row["Protein"].upper().rstrip("*") for row in csv.DictReader(file)]


@needs_mmseqs
@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        pytest.param("random", (777, 1719, 581, (673, 624, 582)), marks=pytest.mark.prove),  # half a minute
        ("cold", (207, 1233, 0, (97, 53, 3))),
    ],
)
def test_the_audit_repeats_what_was_found_before(
    tmp_path: Path, kind: str, figures: tuple[int, int, int, tuple[int, ...]]
) -> None:
    tested, others = (
        store_of(tmp_path / part, [(str(at), each) for at, each in enumerate(dict.fromkeys(drugban(kind, part)))])
        for part in ("test", "train")
    )
    found = compare("train", tested, np.arange(tested.num_records), others, None, IDENTITIES)
    assert (found.queries, found.targets, found.equal, found.similar) == figures
