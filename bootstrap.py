"""What `make setup` runs: makes `.venv` once, with the pinned versions.

In: `setup.cfg`, `pyproject.toml` and `constraints.txt`, and pip's own settings (indexes, certificates, proxy). Out:
`.venv`. Kept: a stamp in it, the hash of those files; while the stamp matches there is nothing to do. It is written
last. An environment without a stamp was interrupted: it is made again, from what had been downloaded.

uv installs, because it takes far less time than pip, at the versions that pip would take. Where uv cannot be installed,
where it fails, and where pip has a setting that uv does not have, pip installs.

Standard library only, and no syntax newer than Python 3.7, so that an old interpreter can say what it lacks.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "zymogen-setup"
INPUTS = ("setup.cfg", "pyproject.toml", "constraints.txt", "bootstrap.py")
PINNED = ("-c", "constraints.txt")
MINIMUM = (3, 11)

# The variables that tell uv what a setting tells pip.
UV_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX",),
    "extra-index-url": ("UV_INDEX",),
    "find-links": ("UV_FIND_LINKS",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "constraint": ("UV_CONSTRAINT",),
    "no-cache-dir": ("UV_NO_CACHE",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
}
# These change nothing about what is installed.
IRRELEVANT = {
    *("cache-dir", "config-file", "disable-pip-version-check", "log", "no-color", "no-input"),
    *("no-python-version-warning", "no-warn-script-location", "progress-bar", "quiet"),
    *("require-virtualenv", "retries", "root-user-action", "verbose"),
}


def say(text: str) -> None:
    """Prints one line of progress."""
    print("setup: " + text, flush=True)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in the project's root, quietly; the caller looks at `returncode`."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)


def demand(done: subprocess.CompletedProcess[str], advice: str) -> None:
    """Stops with the command's own message and the advice unless it succeeded."""
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}setup: {advice}")


def digest() -> str:
    """Hash of what decides the environment; the place counts, because an environment cannot be moved."""
    parts = [str(ROOT).encode(), *((ROOT / name).read_bytes() for name in INPUTS)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def has_gpu() -> bool:
    """Whether an NVIDIA driver is loaded, or `nvidia-smi` lists a device."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    return shutil.which("nvidia-smi") is not None and "GPU 0" in run("nvidia-smi", "-L").stdout


def environment_works() -> bool:
    """Whether `.venv` was finished, is where it was made, and runs a Python that is new enough."""
    # In an environment that was moved or copied, the first line of each script names the old place.
    try:
        found = run(VENV / "bin" / "pip", "--version").stdout.strip()
        place, _, python = found.partition(" from ")[2].rpartition(" (python ")
        version = tuple(int(part) for part in python.rstrip(")").split("."))
    except (OSError, ValueError):
        return False
    return STAMP.exists() and VENV in Path(place).resolve().parents and version >= MINIMUM


def make_environment() -> None:
    """Makes `.venv` from the running interpreter, or stops with what to install."""
    version = "{}.{}".format(*sys.version_info[:2])
    if sys.version_info < MINIMUM:
        sys.exit(
            f"setup: this is Python {version}, and 3.11 or newer is needed; "
            "install one and name it, for example: make setup PYTHON=python3.11"
        )
    advice = f"Python {version} cannot make an environment; on Debian: apt-get install python3-venv"
    if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
        sys.exit(f"setup: {advice}")
    if VENV.is_symlink():
        sys.exit(
            f"setup: {VENV} is a link to {VENV.resolve()}, which this checkout did not make and would empty; "
            "remove the link, and run the same command again"
        )
    say(f"making .venv with Python {version}")
    demand(run(sys.executable, "-m", "venv", "--clear", VENV), advice)


def pip_settings() -> dict[str, str]:
    """Settings of pip as `pip install` has them, from its files and variables: {"index-url": "https://..."}."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in run(PYTHON, "-m", "pip", "config", "list").stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        sections.setdefault(section, {})[key] = ast.literal_eval(value)
    return {**sections["global"], **sections["install"], **sections[":env:"]}


def uv_variables(settings: dict[str, str]) -> dict[str, str]:
    """The environment that tells uv what `settings` tell pip; ValueError names a setting that uv cannot be told."""
    # Variables such as UV_TORCH_BACKEND would make uv take other packages than pip takes.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("UV_") or k == "UV_CACHE_DIR"}
    if "REQUESTS_CA_BUNDLE" in variables:
        variables["SSL_CERT_FILE"] = variables["REQUESTS_CA_BUNDLE"]
    for key, value in settings.items():
        if key not in UV_VARIABLES and key not in IRRELEVANT:
            raise ValueError(f"uv cannot be told pip's setting {key}")
        words = ("," if key == "find-links" else " ").join(value.split())
        variables.update(dict.fromkeys(UV_VARIABLES.get(key, ()), words))
    return variables


class Installer:
    """Installs into `.venv`: with uv if it can be installed, and with pip where uv fails."""

    def __init__(self, folder: str) -> None:
        pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        self.ways = [("pip", pip, dict(os.environ))]
        try:
            variables = uv_variables(pip_settings())
        except ValueError as error:
            say(f"{error}: installing with pip")
            return
        done = run(*pip, "--quiet", "--no-deps", "--only-binary", ":all:", "--target", folder, "uv", *PINNED)
        if done.returncode:
            say("pip cannot see uv, which would be faster: installing with pip")
            return
        uv = [f"{folder}/bin/uv", "pip", "install", "--no-config", "--python", str(PYTHON), "--compile-bytecode"]
        # By default uv looks only at the first index that has a package, pip at all of them.
        self.ways.insert(0, ("uv", [*uv, "--index-strategy", "unsafe-best-match"], variables))

    def offers(self, requirement: str) -> bool:
        """Whether an index has a build of `requirement` for this machine."""
        for _, command, environment in self.ways:
            words = [*command, "--quiet", "--dry-run", "--no-deps", requirement]
            done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
            if done.returncode == 0:
                return True
        if f"No matching distribution found for {requirement}" not in done.stderr:
            demand(done, "pip could not look for torch; the same command continues from here")
        return False

    def install(self, *arguments: str) -> None:
        """Installs `arguments`, and shows what is being done; stops if neither way could."""
        for name, command, environment in self.ways:
            if subprocess.run([*command, *arguments], check=False, cwd=ROOT, env=environment).returncode == 0:
                return
            say(f"{name} could not install the above")
        sys.exit("setup: the same command continues from here")


def torch_requirement(installer: Installer) -> str:
    """The torch to install: with a GPU, the index's build; without, a CPU build where an index has one."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    cpu = f"{torch}+cpu"
    if has_gpu():
        say(f"found a GPU: installing {torch} with CUDA, and the rest")
        # +cpu sorts above the plain version: it would be taken wherever an index has both.
        return f"{torch},!={cpu.partition('==')[2]}"
    if installer.offers(cpu):
        say(f"found no GPU: installing {cpu}, and the rest")
        return cpu
    say(f"found no GPU, but no index has {cpu}: installing {torch} with CUDA, about 3 GB, and the rest")
    return torch


def main() -> None:
    """Brings `.venv` to what the four files ask for; does nothing if it is up to date."""
    wanted = digest()
    works = environment_works()
    if works and STAMP.read_text(encoding="utf-8") == wanted:
        return
    if not works:
        make_environment()
    STAMP.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        installer = Installer(folder)
        installer.install(torch_requirement(installer), "-e", ".[deepspeed,molecules,s3,trackers,test,dev]", *PINNED)
    unfinished = STAMP.with_suffix(".part")
    unfinished.write_text(wanted, encoding="utf-8")
    unfinished.replace(STAMP)
    say("done")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("setup: interrupted; the same command continues from here")
