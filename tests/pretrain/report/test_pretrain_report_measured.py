"""What was measured after a run's end is on its page: perplexity of buckets, precision of contacts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from pretrain.card.card import write_card
from pretrain.report.drawings import IntervalPlot
from pretrain.report.page import write_report
from pretrain.report.results import ASSAYS, CONTACTS, EVALUATION, read
from support.inputs.written_runs import IDENTITIES, LENGTHS, WEIGHTS, WrittenRun, contacts, evaluation
from support.screens.browser import Browser, offences
from zymogen.settings import json_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = WrittenRun(floor=7.5).write(tmp_path / "run")
    (root / EVALUATION).write_text(json_file.as_json(evaluation()))
    (root / CONTACTS).write_text(json_file.as_json(contacts("a-model-with-a-name-longer-than-a-phone")))
    return root


@pytest.mark.slow
def test_every_value_is_drawn(root: Path) -> None:
    by_length, by_identity, of_contacts, of_one = read(root).section().drawings
    assert of_one.summary.startswith("touch: 3 points; predicted, touch: 2 points; predicted, do not: 2 points")
    assert "of a-model-with-a-name" in of_one.note
    assert all(isinstance(drawn, IntervalPlot) for drawn in (by_length, by_identity, of_contacts))
    assert of_one.draw().count("<use") == 3 + 4 + 3  # a mark for each pair, and in the legend
    assert [row.label for row in by_length.rows] == list(LENGTHS)
    assert [(row.value, row.baseline) for row in by_length.rows] == [(14.5 + n / 4, 17.8) for n in range(4)]
    assert [row.label for row in by_identity.rows] == list(IDENTITIES)
    assert (of_contacts.rows[0].label, of_contacts.rows[0].value) == (
        "P@L, a-model-with-a-name-longer-than-a-phone",
        0.31,
    )
    assert of_contacts.rows[-1].label == "chance"
    assert by_length.rows[1].bars == ((14.45, 15.15),)
    drawing = by_length.draw()
    for words in (*LENGTHS, "14.50 (14.20 to 14.90)", ">15.00<", "Perplexity by length"):
        assert words in drawing
    page = write_report(root).read_text()
    assert page.count("Perplexity by identity to the training corpus") >= 1
    assert "Of 1,440 chains" in page
    assert "Frozen set 0123456789ab." in page


@pytest.mark.slow
def test_names_of_files_are_drawn_as_text(root: Path) -> None:
    r"""A formula's beginning, markup, or what a terminal or XML does not take."""
    name = "$\\frac$ <b>&\x1b[31m\x7f"
    (root / CONTACTS).write_text(json_file.as_json(contacts(name)))
    (root / ASSAYS).write_text(f"{ASSAYS_HEAD}A_1,A,$\\frac{{$,{name}:x,9,0.1,,,,\n")
    page = write_report(root).read_text()
    shown = r"$\frac$ &lt;b&gt;&amp;\x1b[31m\x7f"
    assert f"P@L, {shown}" in page
    assert not {"\x1b", "\x7f"} & {*"".join(drawing.draw() for drawing in read(root).section().drawings)}


def test_page_and_card_say_what_was_not_measured_and_name_the_data_as_it_is_called(root: Path) -> None:
    reason = "identity: no corpus was named with --training"
    found = replace(evaluation(), data=("/some/where/my_own.fasta",), not_measured=(reason,))
    (root / EVALUATION).write_text(json_file.as_json(found))
    content = json.loads((root / CONTACTS).read_text())
    (root / CONTACTS).write_text(json.dumps(content | {"weight": [0.0, 0.0]}))
    exported: Any = {"step": 100, "tokens": 1, "is_modern": False, "dtype": "float32", "contacts": ""}
    card = write_card(root, root, **exported, weights={WEIGHTS}).read_text()
    page = write_report(root).read_text()
    for words in (reason, "frequencies are those of the scored proteins", "and it ranks no pair."):
        assert words in card
        assert words in page
    assert r"### Measured afterwards" in card
    assert r"Perplexity of proteins of my\_own.fasta:" in card
    assert "Perplexity of proteins of my_own.fasta" in page
    assert "/some/where" not in card + page
    names = {result.dataset_name for result in ModelCard(card).data.eval_results}
    assert "proteins of my_own.fasta" in names


ASSAYS_HEAD = "DMS_id,UniProt_ID,selection_type,column,variants,spearman,auc,mcc,ndcg,recall\n"


def test_assays_are_strokes_and_their_protein_means_a_dot(root: Path) -> None:
    rows = ["A_1,A,Activity,m:wt-marginal,9,0.1,,,,", "A_2,A,Activity,m:wt-marginal,9,0.3,,,,"]
    rows += [
        "B_1,B,Activity,m:wt-marginal,9,0.6,,,,",
        "B_2,B,Stability,m:wt-marginal,9,,,,,",
        "C,C,Stability,m:x,9,-0.2,,,,",
    ]
    (root / ASSAYS).write_text(ASSAYS_HEAD + "\n".join(rows) + "\n")
    first, second = [drawn for drawn in read(root).section().drawings if drawn.title.startswith("ProteinGym")]
    assert isinstance(first, IntervalPlot)
    assert isinstance(second, IntervalPlot)
    (activity,) = first.rows  # the assay without a value is left out
    assert (activity.label, activity.points) == ("Activity, 3 assays", (0.1, 0.3, 0.6))
    assert activity.value == pytest.approx((0.2 + 0.6) / 2)
    assert [row.label for row in second.rows] == ["Stability, 1 assay"]
    assert ">0.400<" in first.draw()
    (root / ASSAYS).write_text("DMS_id\nA_1\n")
    assert not [drawn for drawn in read(root).section().drawings if drawn.title.startswith("ProteinGym")]


def test_contacts_without_what_stands_beside_them_cost_their_picture_alone(root: Path) -> None:
    content = json.loads((root / CONTACTS).read_text())
    of_nothing, without_chance = content["map"] | {"residues": 0}, content["means"] | {"chance": {}}
    for change in ({"means": {}}, {"map": of_nothing}, {"means": without_chance}):
        (root / CONTACTS).write_text(json.dumps(content | change))
        assert read(root).contacts is None
    (root / CONTACTS).write_text(json.dumps(content))
    assert read(root).contacts is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        '{"format": "zymogen.evaluation/2", "rows": [{}]}',
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("", " ", "{}", "[]", '{"format": 1}')),
    ],
)
def test_a_file_that_is_not_whole_costs_its_picture_alone(root: Path, damage: str) -> None:
    whole = (root / EVALUATION).read_text()
    (root / EVALUATION).write_text(damage or whole.replace('"perplexity": 14.5,', '"perplexity": "x",'))
    assert [drawing.name for drawing in read(root).section().drawings] == ["contacts", "contact-map"]
    assert "Measured afterwards" in write_report(root).read_text()
    (root / CONTACTS).unlink()
    assert read(root).section().drawings == []
    assert "Measured afterwards" not in write_report(root).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "mobile"), [(1280, False), (390, True)])
def test_the_page_is_readable_and_asks_for_nothing(browser: Browser, root: Path, width: int, mobile: bool) -> None:
    model = "esm2_t33_650M_UR50D:masked-marginal-wt-fill"
    rows = [f"{n},P{n},OrganismalFitness,{model},9,{n / 80},,,," for n in range(70)]
    head = "DMS_id,UniProt_ID,selection_type,column,variants,spearman,auc,mcc,ndcg,recall"
    (root / ASSAYS).write_text("\n".join([head, *rows]) + "\n")
    page = write_report(root)
    browser.requests()
    browser.open(page, width, mobile=mobile)
    assert browser.requests() == [page.as_uri()]
    assert browser.driver.get_log("browser") == []
    seen = browser.look()
    assert seen["width"] == width
    assert offences(seen) == []
    assert len(seen["figures"]) == 15
