"""Functions for Python: open a model, embed, score and predict, look at a table, read a run (docs/api.md).

In: names of models, sequences, mutations. Out: NumPy arrays. Kept: nothing on disk; the weights of an open model.
Nothing is printed unless `progress` asks for it, and no signal handler, environment variable or other state of the
process is set. A mistake is a `ValueError` with the message that the command prints. Objects may be shared by threads,
which then compute one after the other.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from data.order.plan import SPECIAL_TOKENS
from data.order.settings import bin_tokens_on
from data.settings import LetterPolicy
from data.sources.protein import letters_of, rejection
from finetune.score.plan import SCHEMES, WINDOW_TOKENS, Scheme
from finetune.score.variant_table import read_target, read_variants, require_scored
from finetune.tables.table import Table
from finetune.tables.wild_types import WildTypes
from zymogen.console.progress import ProgressBar
from zymogen.console.safe_text import silenced
from zymogen.settings.section import require_known

if TYPE_CHECKING:
    from pandas import DataFrame

    from finetune.adaptation.vectors import Pooling
    from finetune.embed.plan import TooLong
    from finetune.look.draft import RecipeDraft
    from finetune.predict.predictor import Predictor
    from finetune.tables.settings import TooLong as TooLongRow
    from pretrain.model.masked_language_model import MaskedLanguageModel
    from pretrain.trained_model import TrainedModel
    from zymogen.trainer.run.reader import RunReader


def open_model(
    source: str | Path, *, base: str | None = None, device: str | None = None, progress: bool = False
) -> "Model":
    """Open a trained model; its weights are read once, here.

    Args:
        source: a run, an export, a bundle, a folder of transformers, or a name on the Hub.
        base: the weights that a bundle was trained on, if they are no longer where they were.
        device: as torch names it; without it, a GPU if there is one.
        progress: print progress on standard error, here and in the model's methods.

    Raises:
        ValueError: there is no such model, or it cannot be read.
    """
    import torch

    from finetune.bundle.encoder import encoder_at
    from finetune.bundle.locate import bundles_in
    from pretrain.trained_model import open_trained_model

    with silenced(is_silent=not progress), ProgressBar("opening the model", after_s=2.0):
        is_whole = base is None and not bundles_in(Path(source))
        trained = open_trained_model(source) if is_whole else encoder_at(source, base)
    return Model(trained, device or ("cuda" if torch.cuda.is_available() else "cpu"), progress)


class Model:
    """An open model, from `open_model`."""

    def __init__(self, source: "TrainedModel", device: str, progress: bool) -> None:
        from pretrain.trained_model import encoder_of

        self._source, self._device, self._progress = source, device, progress
        self._encoder, self._lock = encoder_of(source, device), threading.Lock()
        self._language_model: MaskedLanguageModel | None = None

    @property
    def name(self) -> str:
        """The last part of its path or Hub name."""
        return self._source.name

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return self._source.shape.layers

    @property
    def dim(self) -> int:
        """Numbers of a vector."""
        return self._source.shape.dim

    def embed(
        self,
        sequences: Sequence[str],
        *,
        pooling: "Pooling" = "mean",
        layers: Sequence[int] | None = None,
        too_long: "TooLong" = "refuse",
        max_tokens: int | None = None,
        unknown_letters: LetterPolicy = "refuse",
        bin_tokens: int | None = None,
        compute: Literal["float32", "bfloat16"] = "float32",
    ) -> "NDArray[np.float32] | list[NDArray[np.float32]]":
        """Embed protein sequences.

        Args:
            sequences: n sequences of amino acid letters.
            pooling: "mean" over residues, "begin" for the begin token, or "residue" for every residue.
            layers: layers whose vectors are returned, 0 for the embedding; without it, the last layer alone.
            too_long: "refuse" sequences above `max_tokens`, or read them in overlapping "windows".
            max_tokens: longest document, begin and end token included; that of the model without it.
            unknown_letters: "refuse" letters that are no amino acids, or "count" them as <unk>.
            bin_tokens: tokens of one forward pass; 4,096 on a CPU, 16,384 on a GPU.
            compute: type that the encoder computes in.

        Returns:
            (n, dim) vectors; for "residue" a list of (residues, dim). With `layers`, (n, layers, dim) or a list of
            (residues, layers, dim).

        Raises:
            ValueError: a sequence is no protein or too long, or the model gives something that is not a number.
        """
        from data.batches.packed import BinSize, PlainContents, TokenArrays, split_by_tokens, token_ids
        from finetune.adaptation.vectors import Embedder, windows_of
        from finetune.embed.plan import chosen_layers, part_size, require_window
        from pretrain.model.weights.io import MAX_TOKENS

        if isinstance(sequences, str):
            raise ValueError("sequences is one string; give a list of sequences")
        require_known("pooling", pooling, ["mean", "begin", "residue"])
        chosen = chosen_layers(layers, self._source.shape, self._source.origin)
        longest = max_tokens or MAX_TOKENS[self._source.shape.architecture]
        require_window(longest)
        letters = [_letters(number, text, unknown_letters) for number, text in enumerate(sequences)]
        lengths = np.array([len(each) for each in letters], np.int64) + SPECIAL_TOKENS
        if too_long != "windows" and (lengths > longest).any():
            raise ValueError(
                f"sequences[{lengths.argmax()}] has {lengths.max() - SPECIAL_TOKENS:,} residues, more than the "
                f"{longest - SPECIAL_TOKENS:,} that max_tokens = {longest} allows; read it with too_long='windows', or "
                "raise max_tokens"
            )
        tokens = bin_tokens or bin_tokens_on(self._device)
        contents = PlainContents(
            TokenArrays([token_ids(each) for each in letters]), BinSize.holding(np.minimum(lengths, longest), tokens)
        )
        embedder = Embedder(self._encoder, chosen, pooling, compute == "bfloat16")
        size = part_size(pooling, len(chosen) * self.dim, "float32", tokens)
        found: list[NDArray[np.float32]] = []
        with silenced(is_silent=not self._progress), self._lock, ProgressBar("embedding", after_s=2.0):
            for part in split_by_tokens(lengths, *size):
                records = np.arange(part.start, part.stop)
                vectors = embedder(contents, records, windows_of(lengths[part], longest, first=part.start))
                if not np.isfinite(vectors).all():
                    raise ValueError(
                        f"{self._source.origin} gives something that is not a number; its weights are damaged, or its "
                        "training diverged"
                    )
                ends = np.cumsum(lengths[part] - SPECIAL_TOKENS)[:-1]
                found += np.split(vectors, ends) if pooling == "residue" else [vectors]
        if pooling == "residue":
            return found if layers else [each[:, 0] for each in found]
        whole = np.concatenate([*found, np.zeros((0, len(chosen), self.dim), np.float32)])
        return whole if layers else whole[:, 0]

    def score(
        self,
        wild_type: str,
        mutations: Sequence[str] | None = None,
        *,
        sequences: Sequence[str] | None = None,
        scheme: Scheme = "masked-marginal-wt-fill",
        numbering_offset: int = 0,
        whole: bool = False,
        bin_tokens: int | None = None,
    ) -> NDArray[np.float64]:
        """Score variants of a protein without labels; higher is fitter.

        Args:
            wild_type: letters of the protein.
            mutations: n variants such as "A24P" or "A24P:D30N"; or
            sequences: n variants as whole sequences.
            scheme: one of `finetune.score.plan.SCHEMES`; "pseudo-likelihood" scores insertions and deletions, too.
            numbering_offset: added to the numbers of mutations to count residues of the wild type from 1.
            whole: read proteins of more than 1,022 residues whole, not in a window around the mutations.
            bin_tokens: tokens of one forward pass; 4,096 on a CPU, 16,384 on a GPU.

        Returns:
            (n,) sums of natural logarithms of probabilities.

        Raises:
            ValueError: the model has no language-model head; a variant contradicts the wild type, or has no score.
        """
        import pyarrow

        from finetune.score.scorer import VariantScorer
        from pretrain.trained_model import masked_language_model

        require_known("scheme", scheme, SCHEMES)
        if (mutations is None) == (sequences is None):
            raise ValueError("score: give either mutations or sequences")
        letters = read_target(wild_type, "wild_type")
        column = "mutations" if sequences is None else "sequences"
        table = Table(column, pyarrow.table({column: pyarrow.array(mutations or sequences, pyarrow.string())}), 0)
        rows = read_variants(
            table,
            WildTypes({"wild_type": letters}, ["wild_type"] * table.num_rows, {}),
            mutation=[] if mutations is None else [column],
            sequence=None if sequences is None else column,
            offset=numbering_offset,
        )
        require_scored(table, rows, [scheme])
        window = None if whole else WINDOW_TOKENS
        with silenced(is_silent=not self._progress), self._lock:
            if self._language_model is None:
                self._language_model = masked_language_model(self._source, self._device)
            tokens = bin_tokens or bin_tokens_on(self._device)
            scorer = VariantScorer(self._language_model, self.name, tokens, window)
            scores = scorer(letters, [each for each in rows.variants if each], scheme)
        for number, note in scores.notes.items():
            raise ValueError(f"{table.row(number)}: {note}; read the protein with whole=True")
        return scores.values


def open_bundle(
    source: str | Path, *, base: str | None = None, device: str | None = None, progress: bool = False
) -> "FineTunedModel":
    """Open a fine-tuned model.

    Args:
        source: a bundle, or a run that has one or several: their mean is predicted.
        base: the weights that it was trained on, if they are no longer where they were.
        device: as torch names it; without it, a GPU if there is one.
        progress: print progress on standard error, here and in `predict`.

    Raises:
        ValueError: there is no bundle, or it cannot be read.
    """
    import torch

    from finetune.predict.rows import open_predictors

    with silenced(is_silent=not progress), ProgressBar("opening the model", after_s=2.0):
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return FineTunedModel(open_predictors(Path(source), base, device), progress)


class FineTunedModel:
    """An open bundle, or all models of a run, from `open_bundle`."""

    def __init__(self, predictors: "Sequence[Predictor]", progress: bool) -> None:
        self._predictors, self._progress, self._lock = predictors, progress, threading.Lock()

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return [name for task in self._predictors[0].model.objectives for name in task.outputs]

    def predict(
        self,
        rows: "Sequence[str] | Mapping[str, Sequence[object]] | DataFrame",
        *,
        sequence: Sequence[str] | None = None,
        mutation: Sequence[str] | None = None,
        wild_type: str | None = None,
        too_long: "TooLongRow | None" = None,
        skip_invalid: bool = False,
    ) -> "dict[str, NDArray[Any]] | DataFrame":
        """Predict every task for proteins.

        Args:
            rows: n sequences, columns by name, or a pandas DataFrame.
            sequence: column of sequences, or two of two chains; that of training without it.
            mutation: columns of mutations such as "A24P"; those of training without it.
            wild_type: FASTA file of the proteins that mutations change; those of training without it.
            too_long: part of a protein that is read if it is longer than the model reads: `data.too_long` of a recipe.
            skip_invalid: a row without a protein has no prediction, and is no error.

        Returns:
            Name -> (n,) values: of each task its prediction, its interval or probabilities, as the columns of the
            command; and "note". For a DataFrame, a copy with these columns. A residue task has a list for each row.

        Raises:
            ValueError: a row has no protein or one that is too long, or there is nothing to predict.
        """
        from finetune.predict.checked_rows import checked_rows
        from finetune.predict.rows import ROWS, RowColumns, RowPredictions, column_of, table_in_memory
        from finetune.tables.read import TableParts

        columns = RowColumns(sequence, mutation, wild_type, too_long, skip_invalid)
        bundle = self._predictors[0].bundle
        table = table_in_memory(rows, bundle.manifest.reading.sequence)
        parts = TableParts(table.name, table.columns, (), lambda: table.cut(ROWS))
        settings = columns.settings(bundle.manifest.reading, bundle.folder, table.columns)
        with silenced(is_silent=not self._progress), self._lock, ProgressBar("predicting", after_s=2.0):
            checked = checked_rows(parts, settings, bundle.manifest.reading.crop_tokens)
            found = RowPredictions(self._predictors, checked)
            predicted = found.parts(
                lambda proteins: [each(proteins, np.arange(proteins.num_records)) for each in self._predictors]
            )
            values = [row for _, part in predicted for row in part]
        added = {name: column_of([row[at] for row in values]) for at, name in enumerate(found.names)}
        return added if not hasattr(rows, "assign") else rows.assign(**added)


def look(
    table: str | Path | Sequence[str | Path],
    *,
    recipe: str | Path | None = None,
    wild_type: str | None = None,
    pretrained: str | None = None,
    tasks: Sequence[str] = (),
    sequence: Sequence[str] = (),
    progress: bool = False,
) -> "RecipeDraft":
    """Inspect an assay table: the role of each column, and the recipe that would be trained.

    Args:
        table: CSV, TSV, .xlsx, Parquet or FASTA; several are one table.
        recipe: file to write the recipe to; without it nothing is written.
        wild_type: FASTA file of the protein that mutations change.
        pretrained: model to fine-tune; without it, one of random weights.
        tasks: columns to learn, and no others.
        sequence: column of sequences, or two of two chains.
        progress: print progress on standard error.

    Returns:
        `roles`, column -> (role, reason); `text`, what the command prints; `recipe`, the recipe's text.

    Raises:
        ValueError: it cannot be read, has no protein, or nothing that can be learned.
    """
    from finetune.look.draft import LookOptions, draft_recipe
    from finetune.look.recipe_text import require_own, write

    tables = tuple(map(str, [table] if isinstance(table, (str, Path)) else table))
    with silenced(is_silent=not progress), TemporaryDirectory(prefix="zymogen-look-") as work:
        path = Path(recipe or f"{work}/recipe.toml")
        stores = "runs/stores" if recipe else f"{work}/stores"
        require_own(path)
        options = LookOptions(tables, path, wild_type, pretrained, None, tuple(tasks), tuple(sequence), stores)
        draft = draft_recipe(options)
        if recipe is not None:
            write(path, draft.recipe)
        return draft


def read_run(folder: str | Path) -> "RunReader":
    """Read the directory of a run, also while it trains.

    Returns:
        `settings`, `metrics` (name -> array), `metric(name)`, `validations`, `scores`, `attempts`, `faults`,
        `checkpoints`, `is_finished`, and more: `help(zymogen.read_run("runs/mine"))`.

    Raises:
        ValueError: it is no run directory.
    """
    from zymogen.trainer.run.reader import RunReader

    return RunReader(Path(folder))


def _letters(number: int, text: str, unknown_letters: LetterPolicy) -> str:
    """The letters of a sequence, in upper case.

    Raises:
        ValueError: it is no protein.
    """
    letters = letters_of(text.encode("utf-8", "replace")).upper()
    if refused := rejection(b"sequence", letters, unknown_letters):
        raise ValueError(f"sequences[{number}], {text[:30]!r}, {refused.reason}")
    return letters.decode("ascii", "replace")
