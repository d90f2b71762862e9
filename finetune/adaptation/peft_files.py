"""Adapters from and to folders of peft, for transformers' own classes.

In: a folder with adapter_config.json and adapter_model.safetensors, or an adapter of ours. Out: the other one. Nothing
is kept.

The names differ as those of weights do (`pretrain.model.weights.names`), and a fused map of ours is several maps of
theirs. An adapter of a fused map is exactly one of each of them, with the same A and a part of the rows of B. The other
way, adapters with an A of their own each become one whose rank is the sum of theirs.

peft ignores what it cannot place: an adapter of `EsmForSequenceClassification` loaded into `EsmModel` gives a warning,
and every B stays 0. So everything that does not fit is refused here, by its name.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from finetune.adaptation.adapter import Adapter, LowRank, MapPlan
from finetune.adaptation.lora import linear_maps
from pretrain.model.presets import Architecture, EsmShape
from pretrain.model.weights.names import INNER, LAYER
from zymogen.files.durable import new_dir
from zymogen.settings.section import require_known

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

CLASSES: dict[Architecture, dict[str, str]] = {
    "esm2": {
        "EsmModel": "",
        **dict.fromkeys(("EsmForMaskedLM", "EsmForSequenceClassification", "EsmForTokenClassification"), "esm."),
    },
    "modern": {
        "EsmcModel": "",
        **dict.fromkeys(("EsmcForMaskedLM", "EsmcForSequenceClassification", "EsmcForTokenClassification"), "esmc."),
    },
}
"""transformers' classes of an architecture -> what the names of the encoder's modules begin with in them."""

_PEFT = "base_model.model."
_WEIGHTS_OF_A_MAP = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
_PART = re.compile(r"(.+)\.(lora_A|lora_B|lora_magnitude_vector)(?:\.default)?(?:\.weight)?")

_CARRIED = frozenset(
    (
        *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    )
)
_OF_TRAINING = frozenset(
    (
        *("peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision"),
        *("inference_mode", "runtime_config", "lora_dropout", "init_lora_weights", "modules_to_save"),
        # Defaults that are not false and mean nothing by themselves.
        *("megatron_core", "qalora_group_size"),
    )
)
"""Fields of adapter_config.json that do not decide what a trained adapter computes, or are looked at by themselves."""
_BASE_STAYS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base weights as they are."""


def write_adapter(adapter: Adapter, shape: EsmShape, folder: Path, class_name: str, base: str | None = None) -> None:
    """Write an adapter for one of transformers' classes, with full module paths as targets.

    Args:
        adapter: of a model of ours.
        shape: the shape of its encoder.
        folder: made by this; nothing is there.
        class_name: one of `CLASSES`: the class that peft will put the adapter into.
        base: directory or Hub name of the model that it was trained on, for its config.

    Raises:
        ValueError: the class is none of this architecture, or the folder cannot be written.
    """
    from peft import LoraConfig  # takes seconds to import

    classes = CLASSES[shape.architecture]
    require_known("class of the exported adapter", class_name, classes)
    plan, prefix = adapter.plan, classes[class_name]
    maps = {prefix + name: low for path, of_map in _theirs(shape).items() for name, low in _cut(adapter, path, of_map)}
    sizes = {name: (len(low.a), plan.alpha(MapPlan(len(low.a), low.scale))) for name, low in maps.items()}
    (rank, alpha), _ = Counter(sizes.values()).most_common(1)[0]
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        target_modules=sorted(maps),
        rank_pattern={name: of[0] for name, of in sizes.items() if of[0] != rank},
        alpha_pattern={name: of[1] for name, of in sizes.items() if of[1] != alpha},
        use_rslora=plan.use_rslora,
        use_dora=plan.use_dora,
        base_model_name_or_path=base,
        inference_mode=True,
    )
    fields: dict[str, Any] = config.to_dict()
    said = {key: sorted(value) if isinstance(value, set) else value for key, value in fields.items()}
    tensors = {
        f"{_PEFT}{name}.{key}": part.contiguous().clone()
        for name, low in maps.items()
        for key, part in zip(_WEIGHTS_OF_A_MAP, (low.a, low.b, low.magnitude), strict=True)
        if part is not None
    }
    with new_dir(folder) as building:
        (building / CONFIG).write_text(json.dumps(said, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        save_file(tensors, building / WEIGHTS, metadata={"format": "pt"})


def read_adapter(folder: Path, shape: EsmShape, without: Sequence[str] = ()) -> Adapter:
    """The adapter in a folder that peft wrote, for an encoder of ours.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.
        shape: the shape of the encoder.
        without: whole modules in the folder that the caller gives up, such as "classifier".

    Raises:
        ValueError: it is no LoRA adapter, uses something that has no place here, or lacks or has a weight too many.
    """
    config = _config(folder)
    tensors = _tensors(folder)
    prefix, names = _placed(folder, tensors, shape, tuple(config.modules_to_save or ()), without)
    theirs = {name for of_map in _theirs(shape).values() for name in of_map}
    _require_exact(folder, config, prefix, names, theirs)
    sizes = linear_maps(shape)
    maps: dict[str, LowRank] = {}
    for path, of_map in _theirs(shape).items():
        rows, columns = sizes[path]
        block = rows // len(of_map)
        found = [
            _one(folder, config, prefix + name, names[name], (block, columns)) if name in names else None
            for name in of_map
        ]
        if any(found):
            maps[path] = _fused(found, block)
    return Adapter(maps, bool(config.use_rslora))


def _theirs(shape: EsmShape) -> dict[str, tuple[str, ...]]:
    """Path of each linear map of ours -> paths of theirs inside the bare encoder."""
    inside = LAYER[shape.architecture].partition(".")[2]
    found = {}
    for path in linear_maps(shape):
        layer, _, name = path.removeprefix("encoder.layers.").partition(".")
        weights = INNER[shape.architecture][f"{name}.weight"]
        found[path] = tuple(f"{inside}.{layer}.{weight.removesuffix('.weight')}" for weight in weights)
    return found


def _cut(adapter: Adapter, path: str, theirs: tuple[str, ...]) -> Iterator[tuple[str, LowRank]]:
    """One adapter for each of their maps that a map of ours consists of, without what multiplies by 0."""
    if path not in adapter.maps:
        return
    whole = adapter.maps[path]
    if len(theirs) == 1:
        yield theirs[0], whole
        return
    magnitudes = whole.magnitude.chunk(len(theirs)) if whole.magnitude is not None else [None] * len(theirs)
    untrained = not whole.b.any()
    for name, rows, magnitude in zip(theirs, whole.b.chunk(len(theirs)), magnitudes, strict=True):
        used = (rows != 0).any(0) | untrained
        if magnitude is not None and not used.any():
            used[0] = True  # its magnitudes have no place without it
        if used.any():
            yield name, LowRank(whole.a[used], rows[:, used], whole.scale, magnitude)


def _config(folder: Path) -> Any:
    """Object of peft for adapter_config.json, known to use nothing that has no place here."""
    from peft import LoraConfig

    try:
        said: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG} cannot be read: {error}; give a folder that peft wrote") from error
    if said.get("peft_type") != "LORA":
        raise ValueError(f"{folder}: peft_type is {said.get('peft_type')!r}; only 'LORA' has a place here")
    if said.get("bias", "none") != "none":
        raise ValueError(
            f"{folder}: bias is {said['bias']!r}, so biases of the base were trained with it; only 'none' can be read: "
            "merge the adapter with peft's merge_and_unload, save that model, and start from it"
        )
    if said.get("init_lora_weights", True) not in _BASE_STAYS:
        raise ValueError(
            f"{folder}: init_lora_weights is {said['init_lora_weights']!r}, which changed the base weights before "
            "training; save it with peft's path_initial_model_for_weight_conversion, which makes it an ordinary one"
        )
    others = said.keys() - _CARRIED - _OF_TRAINING - {"bias"}
    if refused := sorted(name for name in others if said[name]):
        named = ", ".join(f"{name} = {said[name]!r}" for name in refused)
        raise ValueError(f"{folder}: {CONFIG} says {named}, which has no place here; give a plain LoRA, rsLoRA or DoRA")
    return LoraConfig.from_peft_type(**said)


def _tensors(folder: Path) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).is_file():
        found = sorted(path.name for path in folder.glob("adapter_model*"))
        raise ValueError(
            f"{folder}: there is no {WEIGHTS}, only {found}; a pickle is not read: save it with safetensors"
        )
    try:
        return {key: tensor.float() for key, tensor in load_file(folder / WEIGHTS).items()}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder / WEIGHTS} cannot be read: {error}; copy or download it again") from error


def _placed(
    folder: Path, tensors: Mapping[str, Tensor], shape: EsmShape, saved: tuple[str, ...], without: Sequence[str]
) -> tuple[str, dict[str, dict[str, Tensor]]]:
    """What their names begin with before the encoder's, and their maps' parts by path inside of the encoder."""
    names: dict[str, dict[str, Tensor]] = {}
    prefixes: set[str] = set()
    whole: dict[str, list[str]] = {}
    for key, tensor in tensors.items():
        place = key.removeprefix(_PEFT)
        top = place.partition(".")[0]
        found = _PART.fullmatch(place)
        if top in (*saved, *without):
            whole.setdefault(top, []).append(key)
        elif found is None:
            raise ValueError(f"{folder}: {key!r} is no part of an adapter, and has no place here")
        else:
            prefix = f"{top}." if top in ("esm", "esmc") else ""
            prefixes.add(prefix)
            names.setdefault(found[1].removeprefix(prefix), {})[found[2]] = tensor
    if lost := sorted(whole.keys() - set(without)):
        raise ValueError(
            f"{folder}: modules_to_save is {list(saved)}: it holds all of {lost}, which would be lost here; if that is "
            f"meant, say so with adaptation.adapter_without={json.dumps(lost)}"
        )
    for name in without:
        require_known("adaptation.adapter_without", name, sorted(whole))
    allowed = set(CLASSES[shape.architecture].values())
    if len(prefixes) != 1 or not prefixes <= allowed:
        raise ValueError(
            f"{folder}: names of its maps begin with {sorted(prefixes)}; all must begin with one of {sorted(allowed)}, "
            "as in transformers' classes of this architecture"
        )
    return prefixes.pop(), names


def _require_exact(
    folder: Path, config: Any, prefix: str, names: Mapping[str, Mapping[str, Tensor]], theirs: set[str]
) -> None:
    """Refuse an adapter of which anything would be ignored, or anything would stay 0."""
    from peft.tuners.tuners_utils import check_target_module_exists

    if strange := sorted(names.keys() - theirs):
        raise ValueError(
            f"{folder}: {len(strange)} adapted maps have no counterpart here, such as {strange[0]!r}: they lie outside "
            f"of the encoder's layers, or the adapter is of another model; there are {len(theirs)}, such as "
            f"{min(theirs)!r}"
        )
    wanted = {name for name in theirs if check_target_module_exists(config, prefix + name)}
    missing = sorted(wanted - names.keys())
    kinds = ("lora_A", "lora_B", *(("lora_magnitude_vector",) if config.use_dora else ()))
    missing += [f"{name}.{kind}" for name, parts in sorted(names.items()) for kind in kinds if kind not in parts]
    if missing:
        raise ValueError(
            f"{folder}: {len(missing)} weights are missing, such as those of {missing[0]!r}; copy it again"
        )
    if not config.use_dora and (more := [name for name, parts in names.items() if len(parts) > 2]):
        raise ValueError(
            f"{folder}: {more[0]!r} has magnitudes, and {CONFIG} says use_dora = false; one of them is wrong"
        )


def _one(folder: Path, config: Any, name: str, parts: Mapping[str, Tensor], size: tuple[int, int]) -> LowRank:
    """The adapter of one of their maps, of (out, in)."""
    from peft.utils.other import get_pattern_key

    rank = config.rank_pattern.get(get_pattern_key(config.rank_pattern, name), config.r)
    alpha = config.alpha_pattern.get(get_pattern_key(config.alpha_pattern, name), config.lora_alpha)
    a, b, magnitude = parts["lora_A"], parts["lora_B"], parts.get("lora_magnitude_vector")
    expected = ((rank, size[1]), (size[0], rank), (size[0],))
    for part, shape in zip((a, b, magnitude), expected, strict=True):
        if part is not None and tuple(part.shape) != shape:
            raise ValueError(
                f"{folder}: a weight of {name!r} is {tuple(part.shape)}; it must be {shape}, by {CONFIG} and the size "
                "of the encoder; give the adapter's own base model"
            )
    return LowRank(a, b, alpha / (math.sqrt(rank) if config.use_rslora else rank), magnitude)


def _fused(blocks: Sequence[LowRank | None], rows: int) -> LowRank:
    """One adapter of maps that are stacked by rows, some of which may have none."""
    there = [block for block in blocks if block is not None]
    if len(blocks) == 1:
        return there[0]
    one = there[0].scale if len({block.scale for block in there}) == 1 else None
    scale = 1.0 if one is None else one
    of_rows = [None if block is None else block.b * (block.scale if one is None else 1.0) for block in blocks]
    magnitude = None
    if there[0].magnitude is not None:
        # A map without an adapter keeps the lengths of its rows, which only the base weights tell.
        own = torch.full((rows,), torch.nan)
        magnitude = torch.cat(
            [own if block is None or block.magnitude is None else block.magnitude for block in blocks]
        )
    if all(torch.equal(block.a, there[0].a) for block in there[1:]):
        empty = torch.zeros(rows, len(there[0].a))
        return LowRank(there[0].a, torch.cat([empty if b is None else b for b in of_rows]), scale, magnitude)
    first, ranks = 0, sum(len(block.a) for block in there)
    stacked = torch.zeros(rows * len(blocks), ranks)
    for number, b in enumerate(of_rows):
        if b is not None:
            stacked[number * rows : (number + 1) * rows, first : first + b.shape[1]] = b
            first += b.shape[1]
    return LowRank(torch.cat([block.a for block in there]), stacked, scale, magnitude)
