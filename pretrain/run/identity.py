"""What a recipe says of a run's identity and schedule, as hashes that stand in every checkpoint.

In: a recipe of whatever job. Out: two hashes. Kept: nothing.
"""

import hashlib
import json
from typing import Any

from zymogen.settings.section import SettingClass, settings_of


def fingerprints_of(recipe: Any) -> dict[str, str]:
    """SHA-256 of all settings of class identity, and of all of class schedule, with their names."""

    def of(setting_class: SettingClass) -> str:
        chosen = {name: value for name, its_class, value in settings_of(recipe) if its_class is setting_class}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    return {"identity": of(SettingClass.IDENTITY), "schedule": of(SettingClass.SCHEDULE)}
