"""The wheel: holds what run time needs, names what it imports, works far from the tree."""

import ast
import importlib.metadata
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def call(*command: str | Path, cwd: Path) -> str:
    """Output of a command; its stderr is the message if it fails."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    call(sys.executable, "-m", "pip", "wheel", *offline, "-w", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def shipped(folder: str) -> Iterator[str]:
    """Every file under a folder of the tree, by its name there; caches are not shipped."""
    for path in (ROOT / folder).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


def test_wheel_holds_the_package_and_its_assets_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assets = {
        f"krrviz/{name}"
        for kind in ("datasets", "checkpoints", "presets")
        for name in shipped(f"assets/{kind}")
        if not name.endswith(".py")
    }
    assert held == {*shipped("krrviz"), *assets}
    for kind in ("datasets", "presets"):
        assert any(name.startswith(f"krrviz/assets/{kind}/") for name in held)


def imported_at_load(source: str) -> Iterator[str]:
    """Top-level names a module imports when it is itself imported, so not inside its functions."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        match waiting.pop():
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                pass
            case ast.Import(names=names):
                yield from (name.name.split(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.split(".")[0]
            case node:
                waiting.extend(ast.iter_child_nodes(node))


def test_wheel_requires_all_that_the_package_imports(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    requirements = [*map(Requirement, metadata.get_all("Requires-Dist", []))]
    core = {canonicalize_name(r.name) for r in requirements if "extra" not in str(r.marker)}
    assert [r.name for r in requirements if 'extra == "sklearn"' in str(r.marker)] == [
        "scikit-learn"
    ]

    imported = {
        name
        for path in (ROOT / "krrviz").rglob("*.py")
        if path.name != "estimator.py"  # loaded where somebody asks for it, with its extra
        for name in imported_at_load(path.read_text(encoding="utf-8"))
    } - {*sys.stdlib_module_names, "krrviz"}
    providers = importlib.metadata.packages_distributions()
    missing = {
        name for name in imported if not core & set(map(canonicalize_name, providers.get(name, [])))
    }
    assert imported
    assert not missing


def test_installed_wheel_runs_far_from_the_tree(wheel: Path, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    call(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=elsewhere)
    # The dependencies are those of the running interpreter. A folder named in a .pth file has its
    # own .pth files left unread, so an editable krrviz that lies there stays out of sight.
    (packages,) = home.glob("lib/python*/site-packages")
    here = f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n"
    (packages / "dependencies.pth").write_text(here, encoding="utf-8")

    origin = call(python, "-c", "import krrviz; print(krrviz.__file__)", cwd=elsewhere)
    assert home.resolve() in Path(origin.strip()).resolve().parents
    out = tmp_path / "out"
    link = "data=motorcycle&n=100"
    call(python, "-m", "krrviz", "run", link, "--out", out, cwd=elsewhere)
    written = {path.name for path in out.iterdir()}
    assert {"settings.json", "trajectories.csv", "fan.csv", "summary.json"} <= written
