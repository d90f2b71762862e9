"""The types of tasks by their names.

In: settings of a task. Out: its `TaskType`. Kept: nothing. `TaskSettings.kind` calls `task_type`.
"""

from finetune.task_types.classes import Binary, Multiclass, Multilabel, Ordinal
from finetune.task_types.numbers import Regression
from finetune.task_types.task_type import TaskType
from finetune.tasks.settings import TASK_TYPES, TaskSettings
from zymogen.settings import extension
from zymogen.settings.options import NoOptions
from zymogen.settings.toml_file import check

_OWN: dict[str, type[TaskType]] = {
    "regression": Regression,
    "binary": Binary,
    "multiclass": Multiclass,
    "ordinal": Ordinal,
    "multilabel": Multilabel,
}
assert tuple(_OWN) == TASK_TYPES


def task_type(settings: TaskSettings) -> TaskType:
    """Return the type of a task, its options checked.

    Raises:
        ValueError: it is none of ours, and cannot be imported, or is no `TaskType`; an option is unknown or not
            allowed.
    """
    name = f"{settings.dotted_name}.type"
    kind = extension.load(name, settings.type, TaskType, _OWN)  # type: ignore[type-abstract]
    if not extension.is_external(settings.type):
        return kind(settings, NoOptions())
    return kind(settings, check(kind.Options, settings.options, f"{settings.dotted_name}.options"))
