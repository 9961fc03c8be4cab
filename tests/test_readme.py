"""The README keeps its word: its snippets and its krrviz commands run as they stand there.

Each ```python block runs by itself. Of a ```sh block the `python -m krrviz` lines run one after
the other in a folder of their own, where `assets` is the project's; the lines that install, fetch
or start something (see NOT_RUN) do not. A line of any other kind is an error.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
NOT_RUN = re.compile(
    r"(\w+=\S* )*(git|cd|make|uv|pip|streamlit|apt-get|python3? -m (pip|venv)|\.|source) "
)

TEXT = README.read_text(encoding="utf-8") if README.exists() else ""


def blocks(language: str) -> list[str]:
    """The fenced blocks in that language, from top to bottom."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[str]:
    """A block's lines, continued lines joined, comments and blank lines left out."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def first_line(block: str) -> str:
    return block.splitlines()[0]


def is_ours(command: str) -> bool:
    return re.match(r"(\w+=\S* )*python3? -m krrviz\b", command) is not None


def call(command: list[str], folder: Path) -> None:
    """Runs a command in a folder, this interpreter's programs first on its path."""
    (folder / "assets").symlink_to(ROOT / "assets")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_readme_shows_the_library_and_the_command_line() -> None:
    assert blocks("python")
    assert not re.search(r"^```(bash|console|py|shell)$", TEXT, re.MULTILINE)  # would not be run
    assert any(is_ours(command) for block in blocks("sh") for command in commands(block))


@pytest.mark.parametrize("snippet", blocks("python"), ids=first_line)
def test_snippet(snippet: str, tmp_path: Path) -> None:
    call([sys.executable, "-c", snippet], tmp_path)


@pytest.mark.parametrize("block", blocks("sh"), ids=first_line)
def test_shell_block(block: str, tmp_path: Path) -> None:
    ours = [command for command in commands(block) if is_ours(command)]
    unknown = [c for c in commands(block) if c not in ours and not NOT_RUN.match(f"{c} ")]
    assert not unknown
    call(["sh", "-ec", "\n".join(ours)], tmp_path)


def test_the_table_of_findings_is_the_one_computed_from_the_shipped_weights() -> None:
    results = (ROOT / "benchmarks" / "results" / "probe.txt").read_text("utf-8")
    card = json.loads((ROOT / "assets" / "checkpoints" / "main-0.json").read_text("utf-8"))
    assert card["sha256"] in results, "python benchmarks/probe.py > benchmarks/results/probe.txt"
    rows = re.findall(r"^\| .*best steps \|.*$", TEXT, re.MULTILINE)
    assert len(rows) == 4
    computed = results[results.index("a probe fitted to exact KRR") :]
    assert all(row in computed for row in rows)
