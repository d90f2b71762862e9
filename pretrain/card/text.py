"""What every card is made of: its metadata, its tables, the names of what was read.

In: facts, from files that nobody vouches for. Out: Markdown with a YAML block that `ModelCard.load` reads. Kept:
nothing.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from pretrain.report.section import ReportSection, source_names
from zymogen.console.safe_text import redacted

NOT_STATED = "not stated"
FOLDER = "path/to/this/folder"
"""Stands for the folder in the lines that load it."""
ESMC_NEEDS = "transformers>=5.17"
"""The first version that has ESM C's classes; setup.cfg requires the same."""
_ESCAPED = re.compile(r"([\\`*_{}\[\]<>|#~])")


def card(
    name: str,
    parts: Mapping[str, Iterable[str]],
    results: Sequence[EvalResult],
    *,
    limits: Iterable[str],
    made_of: str,
    citation: str = "",
    versions: Mapping[str, str],
    pipeline_tag: str,
    is_modern: bool,
    init: str | None,
    library: str = "transformers",
) -> str:
    """The text of README.md, without tokens, passwords or signatures of URLs.

    Args:
        name: of the model.
        parts: heading -> lines of Markdown; those before the first heading have an empty one.
        results: for `model-index`, which is there where anything was measured.
        limits: sentences about what is not known.
        made_of: what has a licence that decides that of the weights.
        citation: more about how to cite the model.
        versions: of the packages that the weights were made with.
        pipeline_tag: the Hub's word for the task.
        is_modern: whether it is an ESM C, which not every version of transformers loads.
        init: what training started from.
        library: that loads the folder.
    """
    measured: dict[str, Any] = {"model_name": plain(name), "eval_results": [*results]} if results else {}
    data = ModelCardData(
        library_name=library,
        pipeline_tag=pipeline_tag,
        tags=["esmc" if is_modern else "esm", "protein-language-model"],
        base_model=hub_model(init),
        requirements=ESMC_NEEDS if is_modern else None,
        **measured,
    )
    body = [f"# {literal(name)}", ""]
    ending = {
        "Limits": [f"- {line}" for line in limits],
        "Licence and citation": [
            f"The licence of these weights is {NOT_STATED}: the run does not know it. Anyone who publishes them adds "
            f"`license` to the metadata above, after a look at the licences of {made_of}.",
            "",
            f"How to cite this model is {NOT_STATED}. {citation}".rstrip(),
        ],
        "Versions": table(("", ""), [(literal(str(package)), literal(str(of))) for package, of in versions.items()]),
    }
    for heading, lines in {**parts, **ending}.items():
        body += [f"## {heading}", ""] if heading else []
        body += [*lines, ""]
    text = "\n".join(body).strip()
    return str(ModelCard(redacted(f"---\n{data.to_yaml()}\n---\n\n{text}\n"), ignore_metadata_errors=False))


def how_to_load(kind: str, *, is_modern: bool) -> list[str]:
    """The lines that load a folder as transformers' class `kind`."""
    return [
        *([f"It needs `{ESMC_NEEDS}`: earlier versions do not have its class.", ""] if is_modern else []),
        "```python",
        "import torch",
        f"from transformers import {kind}, AutoTokenizer",
        "",
        f'model = {kind}.from_pretrained("{FOLDER}")',
        f'tokenizer = AutoTokenizer.from_pretrained("{FOLDER}")',
        'inputs = tokenizer(["MKTAYIAKQRQISFVKSHFSRQ"], return_tensors="pt")',
        "with torch.no_grad():",
        "    logits = model(**inputs).logits",
        "```",
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, whose cells are Markdown."""
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace(chr(10), ' ') for cell in cells)} |"


def section_lines(section: ReportSection, pictures: Collection[str] = ()) -> Iterator[str]:
    """The lines of a section of a report, with those of its drawings that lie beside the card as `pictures`."""
    if section.is_empty:
        return
    yield from ([f"### {literal(section.title)}", ""] if section.title else [])
    yield from (*map(literal, section.paragraphs), "")
    for sheet in section.sheets:
        yield from ([f"{literal(sheet.title)}:", ""] if sheet.title else [])
        yield from table(sheet.head, [[*map(literal, row)] for row in sheet.rows])
        yield from ("", literal(sheet.note), "")
    for drawing in filter(None, section.drawings):
        if (name := f"{drawing.name}.svg") in pictures:
            yield from (f"![{literal(f'{drawing.title}: {drawing.summary}')}]({name})", "")
            yield from (literal(f"{drawing.title}. {drawing.note}"), "")
    yield from (literal(section.note), "")


def plain(text: str) -> str:
    """A name that a user or a file gave, in one line, without control characters or tokens."""
    # Before anything is escaped: a token whose underscores are escaped is not found.
    return " ".join("".join(letter if letter.isprintable() else " " for letter in redacted(text)).split())


def literal(text: str) -> str:
    """The same as Markdown that shows it as it is."""
    return _ESCAPED.sub(r"\\\1", plain(text))


def hub_model(init: str | None) -> str | None:
    """The name on the Hub of what training started from; None for a folder, and for what was never downloaded here.

    A name such as "runs/own" may be either. Only what lies in the cache of downloads was a model of the Hub for sure.
    """
    if init is None or Path(init).exists():
        return None
    try:
        return init if isinstance(try_to_load_from_cache(init, "config.json"), str) else None
    except HFValidationError:
        return None


def started_from(init: str | None, preset: str | None) -> str:
    """What training started from, for readers."""
    if init is None:
        return f"random weights, {preset}"
    return (
        f"[{literal(init)}](https://huggingface.co/{init})"
        if hub_model(init)
        else f"weights in {literal(source_names([init]))}"
    )
