"""What `make setup` does, on a project of its own with packages of a few bytes: no index is asked."""

import ast
import csv
import importlib.util
import io
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]
PINS = "torch==1.0\nuv==2.0\n"
BACKEND = """
import os, shutil
def build_editable(folder, config_settings=None, metadata_directory=None):
    shutil.copy({wheel!r}, folder)
    return os.path.basename({wheel!r})
"""


def wheel(folder: Path, name: str, version: str, *, script: str | None = None) -> Path:
    """Writes a wheel of one module that knows its version, and perhaps of one script."""
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script is not None:
        files[f"{name}-{version}.data/scripts/{name}"] = script
    record = io.StringIO()
    csv.writer(record).writerows((inner, "", "") for inner in [*files, f"{name}-{version}.dist-info/RECORD"])
    files[f"{name}-{version}.dist-info/RECORD"] = record.getvalue()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in files.items():
            entry = zipfile.ZipInfo(inner)
            entry.external_attr = (stat.S_IFREG | 0o755) << 16
            archive.writestr(entry, text)
    return path


def load(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", folder / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bootstrap() -> ModuleType:
    return load(ROOT)


# What it may be written in ------------------------------------------------------------------------


def test_an_old_python_can_read_it_and_needs_no_package() -> None:
    tree = ast.parse((ROOT / "bootstrap.py").read_text("utf-8"), feature_version=(3, 7))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    with pytest.raises(SyntaxError):
        ast.parse("while chunk := read(): pass", feature_version=(3, 7))


# What uv is told ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, {}),
        ({"index-url": "https://a/simple"}, {"UV_DEFAULT_INDEX": "https://a/simple"}),
        ({"extra-index-url": "\nhttps://b\nfile:///c"}, {"UV_INDEX": "https://b file:///c"}),
        ({"find-links": "/wheels other"}, {"UV_FIND_LINKS": "/wheels,other"}),
        ({"trusted-host": "a b:8080"}, {"UV_INSECURE_HOST": "a b:8080"}),
        ({"constraint": "mine.txt yours.txt"}, {"UV_CONSTRAINT": "mine.txt yours.txt"}),
        ({"no-cache-dir": "1"}, {"UV_NO_CACHE": "1"}),
        ({"cert": "/c.pem", "client-cert": "/d.pem"}, {"SSL_CERT_FILE": "/c.pem", "SSL_CLIENT_CERT": "/d.pem"}),
        ({"proxy": "http://p"}, dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://p")),
        ({"default-timeout": "180"}, {"UV_HTTP_TIMEOUT": "180"}),
        ({"quiet": "1", "disable-pip-version-check": "1"}, {}),
    ],
)
def test_uv_is_told_what_pip_is_told(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], told: dict[str, str]
) -> None:
    monkeypatch.setattr(os, "environ", {"HOME": "/home", "HTTPS_PROXY": "http://old", "UV_TORCH_BACKEND": "auto"})
    inherited = {"HOME": "/home", "HTTPS_PROXY": "http://old"}
    assert bootstrap.uv_variables(settings) == inherited | told


def test_certificates_of_the_environment_are_used_unless_pip_has_its_own(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/everybody.pem")
    assert bootstrap.uv_variables({})["SSL_CERT_FILE"] == "/everybody.pem"
    assert bootstrap.uv_variables({"cert": "/mine.pem"})["SSL_CERT_FILE"] == "/mine.pem"


@pytest.mark.parametrize("setting", ["no-index", "no-binary", "only-binary", "pre", "require-hashes", "target", "new"])
def test_what_uv_cannot_be_told_is_for_pip(bootstrap: ModuleType, setting: str) -> None:
    with pytest.raises(ValueError, match=f"uv cannot be told pip's setting {setting}$"):
        bootstrap.uv_variables({"index-url": "https://a", setting: "x"})


def test_settings_are_read_from_files_and_variables(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://global/simple\nextra-index-url =\n    https://one\n    https://two\n"
        "trusted-host = of.global\n"
        "[install]\nindex-url = https://install/simple\ntrusted_host = it's\n[download]\nproxy = http://not-for-install\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable/simple")
    monkeypatch.setattr(bootstrap, "PYTHON", Path(sys.executable))
    found = bootstrap.pip_settings()
    assert found["index-url"] == "https://variable/simple"
    assert found["extra-index-url"].split() == ["https://one", "https://two"]
    assert found["trusted-host"] == "it's"
    assert "proxy" not in found


# Which torch --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "on_offer", "taken", "said"),
    [
        (True, True, "torch=={v},!={v}+cpu", "with CUDA"),
        (False, True, "torch=={v}+cpu", "+cpu"),
        (False, False, "torch=={v}", "about 3 GB"),
    ],
)
def test_which_torch_is_installed(
    bootstrap: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    gpu: bool,
    on_offer: bool,
    taken: str,
    said: str,
) -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    (version,) = (pin.partition("==")[2] for pin in pins if pin.startswith("torch=="))
    asked: list[str] = []
    installer = SimpleNamespace(offers=lambda requirement: asked.append(requirement) or on_offer)
    monkeypatch.setattr(bootstrap, "has_gpu", lambda: gpu)
    assert bootstrap.torch_requirement(installer) == taken.format(v=version)
    assert asked == ([] if gpu else [f"torch=={version}+cpu"])
    assert said in capsys.readouterr().out


# The whole way ------------------------------------------------------------------------------------


class Project:
    """A project with nothing but what `bootstrap.py` reads, and a folder of wheels in place of an index."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "project"
        self.wheels = folder / "wheels"
        self.folder.mkdir()
        self.wheels.mkdir()
        (self.folder / "bootstrap.py").write_bytes((ROOT / "bootstrap.py").read_bytes())
        (self.folder / "constraints.txt").write_text(PINS)
        (self.folder / "setup.cfg").write_text("")
        (self.folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        editable = wheel(folder, "zymogen", "0.1")
        (self.folder / "backend.py").write_text(BACKEND.format(wheel=str(editable)))
        for version in ("1.0", "1.0+cpu"):
            wheel(self.wheels, "torch", version)
        self.monkeypatch = monkeypatch
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
            monkeypatch.delenv(name)
        index = folder.joinpath("empty").as_uri()
        for name, value in {"CONFIG_FILE": os.devnull, "INDEX_URL": index, "FIND_LINKS": str(self.wheels)}.items():
            monkeypatch.setenv(f"PIP_{name}", value)

    def setup(self) -> None:
        module = load(self.folder)
        self.monkeypatch.setattr(module, "has_gpu", lambda: False)
        module.main()

    def installed(self) -> dict[str, str]:
        """Names and versions of what pip finds in the environment, less pip and setuptools."""
        command = [str(self.folder / ".venv/bin/pip"), "list", "--format=freeze"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        versions = dict(line.split("==") for line in listed)
        return {name: version for name, version in versions.items() if name not in {"pip", "setuptools"}}

    def add_uv(self, exit_status: int) -> Path:
        """Puts a uv on offer that writes down what it is told and installs nothing; returns where it writes."""
        log = self.folder.parent / "uv.log"
        script = f'#!/bin/sh\necho "$@" >> {log}\necho "$UV_INDEX $UV_FIND_LINKS" >> {log}\nexit {exit_status}\n'
        wheel(self.wheels, "uv", "2.0", script=script)
        return log


INSTALLED = {"torch": "1.0+cpu", "zymogen": "0.1"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


@pytest.mark.slow
def test_uv_is_asked_first(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    log = project.add_uv(exit_status=0)
    monkeypatch.setenv("UV_INDEX", "https://elsewhere/simple")
    project.setup()
    asked, variables, installed, _ = log.read_text().splitlines()
    assert "--dry-run --no-deps torch==1.0+cpu" in asked
    assert variables == f" {project.wheels}"
    assert installed.endswith("torch==1.0+cpu -e .[deepspeed,molecules,s3,trackers,test,dev] -c constraints.txt")
    assert project.installed() == {}


@pytest.mark.prove
def test_pip_installs_where_uv_fails_and_what_was_installed_is_kept(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    project.add_uv(exit_status=3)
    project.setup()
    assert "setup: uv could not install the above" in capfd.readouterr().out
    assert project.installed() == INSTALLED

    kept = project.folder / ".venv/kept"
    kept.touch()
    project.setup()
    assert capfd.readouterr().out == ""

    (project.wheels / "torch-1.0+cpu-py3-none-any.whl").unlink()
    wheel(project.wheels, "torch", "1.1")
    (project.folder / "constraints.txt").write_text(PINS.replace("1.0", "1.1"))
    project.setup()
    assert project.installed() == {**INSTALLED, "torch": "1.1"}
    assert kept.exists()

    # A copy's scripts still name the first place, where there is a whole environment.
    project.folder = shutil.copytree(project.folder, project.folder.with_name("copy"), symlinks=True)
    project.setup()
    assert project.installed() == {**INSTALLED, "torch": "1.1"}
    assert not (project.folder / ".venv/kept").exists()


@pytest.mark.slow
def test_without_uv_and_after_an_interruption(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    interrupted = project.folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", interrupted], check=True)
    half = next((interrupted / "lib").glob("python*")) / "site-packages/torch-1.0+cpu.dist-info"
    half.mkdir()
    (half / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0+cpu\n")
    project.setup()
    assert "pip cannot see uv" in capfd.readouterr().out
    assert project.installed() == INSTALLED
    command = [interrupted / "bin/python", "-c", "import torch; print(torch.version)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1.0+cpu\n"


@pytest.mark.slow
def test_what_cannot_be_installed_leaves_no_stamp(project: Project) -> None:
    for path in project.wheels.iterdir():
        path.unlink()
    with pytest.raises(SystemExit, match="the same command continues from here"):
        project.setup()
    assert not (project.folder / ".venv/zymogen-setup").exists()


def test_an_environment_that_a_link_leads_to_is_left_alone(project: Project, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    (other / "bin/python").write_text("somebody's")
    (project.folder / ".venv").symlink_to(other)
    with pytest.raises(
        SystemExit, match=r"\.venv is a link to .*/other, which this checkout did not make and would emp"
    ):
        project.setup()
    assert (other / "bin/python").read_text() == "somebody's"
