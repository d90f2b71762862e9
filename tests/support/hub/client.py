"""The HuggingFace library of this process, turned to a local hub: with its token, without Xet, without real pauses."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, close_session, constants
from huggingface_hub.utils import _http

from support.hub.server import Hub, serving

TOKEN = "hf_plantedPlantedPlantedPlantedPlanted"


@contextmanager
def local_hub(folder: Path, token: str = TOKEN) -> Iterator[Hub]:
    """A hub that the library of this process speaks to.

    Args:
        folder: an empty one, in place of the user's home.
        token: set in the environment, and accepted.
    """
    with serving(token) as hub, pytest.MonkeyPatch.context() as patch:
        for name in ("HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
            patch.delenv(name, raising=False)
        patch.setenv("HF_TOKEN", token)
        patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(_http, "time", SimpleNamespace(sleep=lambda _: None))  # between its own attempts
        close_session()
        yield hub
        close_session()


def api(hub: Hub) -> HfApi:
    return HfApi(endpoint=hub.url, token=True)


def environment(hub: Hub, folder: Path) -> dict[str, str]:
    """The variables with which another process speaks to it."""
    switches = ("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY")
    said = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "0"}
    return said | dict.fromkeys(switches, "1")
