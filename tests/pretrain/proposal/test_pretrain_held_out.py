"""What a proposal holds out, and what it says of that."""

from pathlib import Path

import pytest

from data.homology import mmseqs
from pretrain.proposal import corpus
from pretrain.proposal.corpus import SplitFacts, facts_of, split_of
from support.inputs.token_stores import proteins, store_of

APART = {"data.split_identity": None}
"""No clustering: two proteins are relatives if they are equal."""


@pytest.mark.parametrize(
    ("given", "fraction", "held", "said"),
    [
        ({**APART, "data.validation_fraction": 0.0}, 0.0, (0, 0), "nothing is held out, as you asked: scores are of"),
        ({"data.validation_fraction": 0.0}, 0.0, (0, 0), "nothing is held out, as you asked: scores are of"),
        ({**APART, "data.validation_fraction": 0.6}, 0.6, (90, 150), "by equal sequences alone, as you asked"),
        (APART, 0.1, (8, 35), "by equal sequences alone, as you asked"),
    ],
)
def test_a_given_share_is_counted(
    given: dict[str, float | None], fraction: float, held: tuple[int, int], said: str, tmp_path: Path
) -> None:
    store = store_of(tmp_path, proteins(200))
    found = split_of(store, facts_of(store), None, 600.0, given, cluster=True)
    assert found.fraction == fraction
    assert held[0] <= found.held_proteins <= held[1]
    assert found.reason.startswith(said)


def test_clusters_that_are_kept_serve_where_mmseqs2_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path, proteins(200))
    facts, reasons = facts_of(store), []
    monkeypatch.setattr(mmseqs, "why_not_installed", lambda: "MMseqs2 needs 1.2 GB of memory")
    for is_clustered in (False, True):
        monkeypatch.setattr(corpus, "_is_clustered", lambda *_, there=is_clustered: there)
        monkeypatch.setattr(corpus, "_by_identity", lambda *_: SplitFacts(0.1, 0.5, 20, "by clusters", 200))
        reasons.append(split_of(store, facts, None, 600.0, {}, cluster=True).reason)
    assert reasons[0].startswith("by equal sequences alone, because MMseqs2 needs 1.2 GB of memory")
    assert reasons[1] == "by clusters"


def test_too_few_clusters_are_the_reason_only_where_they_are(tmp_path: Path) -> None:
    store = store_of(tmp_path, proteins(1) * 5 + proteins(2)[1:])
    found = split_of(store, facts_of(store), None, 600.0, {**APART, "data.validation_fraction": 1e-9}, cluster=True)
    assert (found.held_proteins, found.reason) == (
        0,
        "nothing is held out, because 1e-09 of 2 clusters is none here: scores are of training proteins",
    )
