"""The card of a pretrained model: what it was trained on, how, with which scores, and what nobody measured.

In: a run directory, the step that is exported. Out: README.md and the pictures beside it. Kept: those files.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import EvalResult

from pretrain.card.results import measured_results
from pretrain.card.text import (
    NOT_STATED,
    card,
    how_to_load,
    literal,
    section_lines,
    started_from,
    table,
)
from pretrain.evaluate.scores import TITLES, HeldOutUnit, format_interval
from pretrain.report import charts, page_text, results
from pretrain.report.pictures import card_pictures
from pretrain.report.results import RunResults
from pretrain.report.section import NOT_MEASURED, ReportSection, source_names
from zymogen.console.format import format_number
from zymogen.console.safe_text import log
from zymogen.trainer.run.reader import RunReader

_PLACES = ("directory", "store_dir", "sources", "clusters", "exclude", "mixture", "init", "trackers", "table", "file")
"""Settings that name places on somebody's machine, or are shown elsewhere."""
_PLAIN = re.compile(r"[\w.,+ \[\]-]*")
_PAPERS = {
    "ESM-2": "Lin et al. (2023), Evolutionary-scale prediction of atomic-level protein structure with a language "
    "model, Science 379",
    "ESM C": "ESM Team (2024), ESM Cambrian: Revealing the mysteries of proteins with unsupervised learning",
}


def write_card(
    root: Path,
    folder: Path,
    *,
    step: int,
    tokens: int,
    is_modern: bool,
    dtype: str,
    contacts: str,
    weights: Collection[str] = (),
) -> Path:
    """Write README.md and its pictures into a folder that is being made.

    Pictures that cannot be drawn, as without matplotlib, cost a line and not the export. So does what was measured of
    other weights than those that are exported.

    Args:
        root: run directory.
        folder: of the export.
        step: of the exported checkpoint.
        tokens: seen by then.
        is_modern: whether the model is an ESM C.
        dtype: that of the stored weights.
        contacts: what the export knows of contacts, in Markdown.
        weights: content hashes of the weights, as the checkpoint has them and as they are stored.

    Returns:
        The path of README.md.

    Raises:
        ValueError: it is no run directory.
    """
    run = RunReader(root, step)
    found = results.read(root, weights)
    if found.of_others:
        files = ", ".join(str(root / name) for name in found.of_others)
        log(f"not of the exported weights, and not on the card: {files}")
    loss, measured = ReportSection("", drawings=(charts.loss_figure(run),)), found.section()
    pictures = card_pictures((*loss.drawings, *measured.drawings), folder)
    described, recipe = run.record, run.settings
    data, corpus = recipe.get("data") or {}, described.corpus
    model = recipe.get("model") or {}
    validated = [each for each in run.validations if each.step == step]
    scores, frozen = (validated[-1].scores, validated[-1].test_set) if validated else (None, "")
    architecture = "ESM C" if is_modern else "ESM-2"
    seen = f"{tokens:,} tokens (real ones, padding not counted)"
    parts = {
        "": [
            f"An {architecture} encoder, pretrained with Zymogen by masked language modelling on protein sequences.",
            "",
            *how_to_load("AutoModelForMaskedLM", is_modern=is_modern),
            "",
            contacts,
        ],
        "Training": [
            *table(
                ("", ""),
                [
                    ("started from", started_from(model.get("init"), model.get("preset"))),
                    ("trained for", f"{step} steps, {seen}"),
                    *(("corpus", line) for line in corpora(data, corpus)),
                    ("fingerprint of what was drawn", f"`{corpus.get('fingerprint')}`"),
                    ("fingerprint of the split", f"`{corpus.get('split')}`"),
                    ("longest document", f"{data.get('crop_tokens')} tokens"),
                    ("weights stored as", f"`{dtype}`"),
                    *_compute(run),
                ],
            ),
            "",
            "<details><summary>Recipe</summary>",
            "",
            *table(("setting", "value"), _recipe(run)),
            "",
            "</details>",
        ],
        "Evaluation": [
            *validation(scores, corpus, frozen),
            "",
            *section_lines(loss, pictures),
            *section_lines(measured, pictures),
        ],
    }
    name = root.resolve().name
    scored = [*validation_results(name, scores, corpus, frozen), *measured_results(found, frozen)]
    text = card(
        name,
        parts,
        scored,
        limits=_limits(scores, data, corpus, found),
        made_of="the sequences and of what training started from",
        citation=f"The architecture: {_PAPERS[architecture]}.",
        versions=described.versions,
        pipeline_tag="fill-mask",
        is_modern=is_modern,
        init=model.get("init"),
    )
    path = folder / "README.md"
    path.write_text(text, encoding="utf-8")
    return path


def corpora(data: Mapping[str, Any], corpus: Mapping[str, Any]) -> Iterator[str]:
    """Sources, sizes, split and what was left out of each corpus."""
    for settings, found in zip(data.get("mixture") or [data], corpus.get("mixture", [corpus]), strict=False):
        sources = [str(source) for source in settings.get("sources") or []]
        training, residues = found.get("training_records"), found.get("residues")
        sequences = "a stream" if training is None else f"{training:,} training"
        if any(source.startswith("synthetic:") for source in sources) or settings.get("clusters"):
            split = "clusters"
        elif settings.get("split_identity"):
            split = f"MMseqs2 clusters at {settings['split_identity']:.0%} identity"
        else:
            split = "equal sequences"
        weight = f"weight {settings['weight']}, " if data.get("mixture") else ""
        held = f"{weight}{sequences} and {found.get('validation_records', 0):,} validation sequences, split by {split}"
        size = "" if residues is None else f"; {residues:,} residues in all"
        read = literal(source_names(sources)) or NOT_STATED
        yield f"{held}{size}; read from {read}; {_removed(settings, found)}"


def _removed(settings: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What was kept from training because it is elsewhere."""
    left_out = f"{found.get('copies_of_validation') or 0:,} copies of validation sequences left out"
    if not settings.get("exclude"):
        return f"{left_out}; not decontaminated against any other set"
    count, copies = found.get("excluded_records") or 0, found.get("copies_of_excluded") or 0
    named = literal(source_names([settings["exclude"]]))
    return (
        f"{left_out}; decontaminated: {count:,} records that {named} lists never train, nor {copies:,} copies of them"
    )


def _compute(run: RunReader) -> Iterator[tuple[str, str]]:
    """Devices, time, FLOPs, energy."""
    lines = run.record.compute
    yield "computed with", literal(lines[0].removeprefix("compute: ")) if lines else NOT_STATED
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.diff(run.metric("tokens"), prepend=0.0) / run.metric("tokens_per_s")
    time, flops = seconds.sum(), (run.metric("flops_per_s") * seconds).sum()  # not finite where one is not
    hours = f"{time / 3600:.3g} hours (without starts, validations and saves)"
    yield "time in training steps", hours if len(seconds) and np.isfinite(time) else NOT_MEASURED
    needed = f"{flops:.3g} (recomputing not counted)"
    yield "FLOPs in training steps", needed if len(seconds) and np.isfinite(flops) else NOT_MEASURED
    yield "energy", NOT_MEASURED


def _recipe(run: RunReader) -> Iterator[tuple[str, str]]:
    for section, settings in page_text.recipe(run):
        for name, value in settings:
            if name.rpartition(".")[2] not in _PLACES and _PLAIN.fullmatch(value):
                yield literal(f"{section}.{name}"), literal(value) or "none"


def validation(
    scores: Mapping[str, Mapping[str, float | None]] | None, corpus: Mapping[str, Any], frozen: str = ""
) -> list[str]:
    """The table of perplexities, and what they are of; `frozen` is the hash of the frozen set."""
    if not scores or "mask_all" not in scores:
        return [f"Not validated at this step: perplexity is {NOT_MEASURED}."]
    heading, over = "Validation perplexity", ""
    if (held_out := HeldOutUnit.of(corpus)) is not None:
        heading = held_out.heading(int(scores["mask_all"].get("sequences") or 0), corpus)
        over = {HeldOutUnit.CLUSTERS: " over clusters", HeldOutUnit.SEQUENCES: " over sequences"}.get(held_out, "")
    rows = (
        (
            *(TITLES.get(name, name), format_number(of["perplexity"]), format_interval(of.get("low"), of.get("high"))),
            format_number(of.get("unigram")),
        )
        for name, of in scores.items()
    )
    return [
        f"{heading}, 15 % of residues as targets",
        f"(exp of the mean loss over targets; 95 % interval by bootstrap{over}).",
        "Mask-all hides every target; 80/10/10 shows a tenth of them.",
        *([f"The frozen set is `{literal(frozen)}`."] if frozen else []),
        "",
        *table(("corruption", "perplexity", "95 % interval", "unigram baseline"), rows),
    ]


def validation_results(
    name: str, scores: Mapping[str, Mapping[str, float | None]] | None, corpus: Mapping[str, Any], frozen: str = ""
) -> list[EvalResult]:
    """The same for `model-index`, whose format has no place for intervals and baselines but the metric's arguments."""
    side = "training" if HeldOutUnit.of(corpus) is HeldOutUnit.NOTHING else "held-out"
    return [
        EvalResult(
            task_type="fill-mask",
            task_name="Masked language modelling",
            dataset_type="protein-sequences",
            dataset_name=f"{side} proteins of {name}",
            dataset_split="train" if side == "training" else "validation",
            dataset_revision=corpus.get("split"),
            metric_type="perplexity",
            metric_name=f"Perplexity, {TITLES.get(corruption, corruption)}",
            metric_value=of["perplexity"],
            metric_args={
                **{key: number for key, number in of.items() if key != "perplexity"},
                **({"set": frozen} if frozen else {}),
            },
        )
        for corruption, of in (scores or {}).items()
        if of.get("perplexity") is not None
    ]


def _limits(
    scores: Mapping[str, Mapping[str, float | None]] | None,
    data: Mapping[str, Any],
    corpus: Mapping[str, Any],
    found: RunResults,
) -> Iterator[str]:
    if not scores and found.evaluation is None:
        yield "These weights were not validated: nothing is known of how well they predict proteins."
    held_out = HeldOutUnit.of(corpus)
    if held_out is HeldOutUnit.NOTHING:
        yield "No protein was held out: the perplexity is that of training proteins, and says nothing of new ones."
    elif held_out is HeldOutUnit.SEQUENCES:
        yield "Relatives of the held-out proteins may have trained, which makes the perplexity look better than it is."
    if (crop := data.get("crop_tokens")) is not None:
        yield f"Documents of more than {crop} tokens were never seen whole; longer proteins are outside of training."
    asked = {"scores of variants": found.assays, "precision of contacts": found.contacts}
    missing = [what for what, numbers in asked.items() if not numbers]
    absent = ", ".join([*missing, "what embeddings are worth for other tasks"])
    yield f"{absent[0].upper()}{absent[1:]}: {NOT_MEASURED} of these weights."
    yield "A language model repeats what its corpus has too much of: families and organisms with many sequences."
