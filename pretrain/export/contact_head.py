"""A contact head in an export: put there after it was fitted, and said on the card.

In: a folder that holds an ESM-2 as transformers reads it, and a head. Out: the same folder with that head. Kept: one
file of weights there is replaced, whole or not at all, and the line of the card about contacts.
"""

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from transformers import EsmConfig

from pretrain.card.text import FOLDER
from pretrain.model.presets import EsmShape
from pretrain.model.weights.names import CONTACT_BIAS, CONTACT_WEIGHT, ContactHead
from pretrain.model.weights.source import config_of, shards_of
from zymogen.files.durable import replacing_file

NOT_FITTED = "Contacts are not trained: `predict_contacts` answers 0.5 everywhere."
_HOW = f'''load the model with `attn_implementation="eager"` for it:

```python
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained("{FOLDER}", attn_implementation="eager")
tokenizer = AutoTokenizer.from_pretrained("{FOLDER}")
inputs = tokenizer(["MKTAYIAKQRQISFVKSHFSRQ"], return_tensors="pt")
with torch.no_grad():
    contacts = model.predict_contacts(inputs["input_ids"], inputs["attention_mask"])
```'''
_REMEDY = "get the right to write there"


def contact_card_lines(shape: EsmShape, contact_head: ContactHead | None) -> str:
    """The card's line about contacts, of a model whose head came with the weights that it started from."""
    if shape.is_modern:
        return "The tokenizer knows chain breaks, `|`; the model has seen none."
    if contact_head is None:
        return NOT_FITTED
    return (
        "`predict_contacts` uses the contact head of the model that the training started from, which was not fitted "
        f"again; {_HOW}"
    )


def require_writable(folder: Path) -> None:
    """Refuse what no contact head can be written to, before it is fitted.

    Raises:
        ValueError: `folder` is no folder of transformers' with an ESM-2.
    """
    if not (folder / "config.json").is_file():
        exported = folder / "export"
        found = f"give {exported}" if (exported / "config.json").is_file() else "give the folder of an export"
        raise ValueError(f"{folder} is no folder with an exported model, and a contact head is written to one; {found}")
    if not isinstance(config_of(folder), EsmConfig):
        raise ValueError(f"{folder} is an ESM C, which has no contact head in transformers; leave --write out")
    _file_of_the_head(folder)


def write(folder: Path, head: ContactHead, fitted_on: str) -> Path:
    """Put `head` into the weights of an export, in the type that these have.

    Args:
        folder: for which `require_writable` raises nothing.
        head: of as many maps as the model has.
        fitted_on: what it was fitted on, for the card: "20 chains".

    Returns:
        The file that was replaced.

    Raises:
        ValueError: the disk is full, or the folder cannot be written.
    """
    path = _file_of_the_head(folder)
    with safe_open(path, framework="pt", device="cpu") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dictionary
        metadata = file.metadata()
    for name, tensor in head.state().items():
        tensors[name] = tensor.to(tensors[name].dtype)
    with replacing_file(path, _REMEDY) as building:
        save_file(tensors, building, metadata)
        building.chmod(path.stat().st_mode & 0o777)
    card = folder / "README.md"
    if card.is_file() and NOT_FITTED in (text := card.read_text(encoding="utf-8")):
        line = f"`predict_contacts` uses a regression on attention maps that was fitted on {fitted_on}; {_HOW}"
        with replacing_file(card, _REMEDY) as building:
            building.write_text(text.replace(NOT_FITTED, line), encoding="utf-8")
            building.chmod(card.stat().st_mode & 0o777)
    return path


def _file_of_the_head(folder: Path) -> Path:
    """The file of weights that has both tensors of the head."""
    path = folder / "model.safetensors"
    if not path.is_file() and (files := shards_of(folder)):
        path = folder / files.get(CONTACT_WEIGHT, "nothing")
        if files.get(CONTACT_WEIGHT) != files.get(CONTACT_BIAS):
            raise ValueError(f"{folder} has its contact head in two files; export the model once more, in larger files")
    names: set[str] = set()
    if path.is_file():
        with safe_open(path, framework="pt", device="cpu") as file:
            names = set(file.keys())
    if not {CONTACT_WEIGHT, CONTACT_BIAS} <= names:
        raise ValueError(
            f"{folder} has no tensors of a contact head ({CONTACT_WEIGHT}) in safetensors; export the model again"
        )
    return path
