"""Training that is stopped or killed goes on as if not, and its prompts are what they say."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF, DotProduct, Matern
from sklearn.kernel_ridge import KernelRidge

from krrviz.trained.gpt import CheckpointError, Shape, load
from krrviz.trained.prompts import KERNELS, Task, answers, draw
from krrviz.trained.train import RECIPES, Recipe, batch_of, gaps, train

CPU = torch.device("cpu")
TINY = Recipe(
    shape=Shape(n=6, layers=2, width=16, heads=2),
    task=Task(n=6),
    steps=12,
    batch=8,
    warm_up=2,
    every=4,
)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load(path)[0].state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_stopping_and_going_on_gives_the_weights_of_never_having_stopped(tmp_path: Path) -> None:
    whole = train(TINY, tmp_path / "whole", CPU)
    *_, parts = (train(TINY, tmp_path / "parts", CPU, stop=lambda: True) for _ in range(3))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert whole["steps"] == parts["steps"] == 12
    assert whole["figures"] == parts["figures"]
    logs = [(tmp_path / f"{name}.csv").read_text() for name in ("whole", "parts")]
    assert logs[0] == logs[1]
    assert logs[0].startswith("step,loss,gap_to_krr,excess_error\n4,")
    assert train(TINY, tmp_path / "whole", CPU) == {}  # it is done


def test_a_kill_at_any_moment_loses_one_interval_at_most(tmp_path: Path) -> None:
    program = (
        "import sys, torch; from pathlib import Path; sys.path[:0] = [sys.argv[2]]\n"
        "from test_train import TINY, train\n"
        "train(TINY, Path(sys.argv[1]), torch.device('cpu'))"
    )
    train(TINY, tmp_path / "whole", CPU)
    path = tmp_path / "killed"
    for patience in (0.0, 0.15):
        running = subprocess.Popen(
            [sys.executable, "-c", program, str(path), str(Path(__file__).parent)]
        )
        while running.poll() is None and not path.with_name("killed.state.safetensors").exists():
            time.sleep(0.002)
        time.sleep(patience)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    train(TINY, path, CPU)
    assert same(weights(tmp_path / "whole"), weights(path))


def test_a_folder_that_cannot_be_written_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(TINY, path, CPU, stop=lambda: True)
    before = weights(path)
    # A folder where the file is to go: even root cannot write there.
    (tmp_path / "run.state.safetensors.partial").mkdir()
    with pytest.raises(OSError, match=r"run\.state\.safetensors cannot be written"):
        train(TINY, path, CPU)
    assert same(weights(path), before)


FILES = ("run.csv", "run.safetensors", "run.json", "run.state.safetensors")


@pytest.mark.parametrize("number", range(4))
def test_a_disk_full_at_any_file_keeps_all_files_of_the_last_checkpoint(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flush, written = tmp_path / "run", os.fsync, []
    train(TINY, path, CPU, stop=lambda: True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert before.keys() == {*FILES}

    def full(file: int) -> None:
        written.append(file)
        if len(written) == number + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"/{FILES[number]} cannot be written: .*No space left"):
        train(TINY, path, CPU)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_a_file_that_may_grow_no_further_is_told_and_the_checkpoint_stays(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "run"
    train(TINY, path, CPU, stop=lambda: True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(OSError, match=r"run\.safetensors cannot be written"):
            train(TINY, path, CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("number", range(4))
def test_a_kill_between_two_files_of_the_last_checkpoint_costs_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(TINY, tmp_path / "whole", CPU)
    path, put, done = tmp_path / "run", os.replace, []

    def killed(source: Path, target: Path) -> None:
        if len(done) == 8 + number:  # the third checkpoint is the last
            raise KeyboardInterrupt
        done.append(target)
        put(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            train(TINY, path, CPU)
    train(TINY, path, CPU)
    assert same(weights(tmp_path / "whole"), weights(path))
    assert (tmp_path / "whole.csv").read_text() == path.with_name("run.csv").read_text()


def test_a_recipe_comes_back_from_its_card() -> None:
    for recipe in (*RECIPES.values(), TINY):
        assert Recipe.from_card(json.loads(json.dumps(recipe.card()))) == recipe


def changed(part: str | None = None, **changes: Any) -> Any:
    """TINY's card with something else in it."""
    card = TINY.card()
    (card if part is None else card[part]).update(changes)
    return card


BAD: dict[str, tuple[Any, str]] = {
    "a list": ([1], r"the recipe is \[1\] and must be an object of shape, task, steps"),
    "a key more": (changed(colour=1), "'colour' is no part of the recipe, which has shape"),
    "a key more in the task": (changed("task", hue=1), "'hue' is no part of its task, which has d"),
    "a key less": ({"shape": {}}, "the recipe lacks task; it has"),
    "no shape": (changed(shape=None), "its shape is None and must be an object of d, n"),
    "a word for a number": (changed(steps="9"), "steps='9' must be a whole number"),
    "no step": (changed(steps=0), "steps=0 must be a whole number from 1 to 1000000"),
    "a seed too large": (changed(seed=2**31), "seed=2147483648 must be .* to 2047"),
    "a word for a rate": (changed(rate="fast"), "rate='fast' must be a number"),
    "no rate": (changed(rate=float("nan")), "rate=nan must be a finite number above 0"),
    "a bare bandwidth": (changed("task", bandwidth=0.5), "bandwidth=0.5 must be two numbers"),
    "words for ridges": (changed("task", ridge=["a", "b"]), r"ridge=\['a', 'b'\] must be two"),
    "no kernel": (changed("task", kernel="rbf"), "kernel='rbf' must be one of gaussian, laplacian"),
    "no word": (changed("task", kernel=[]), r"kernel=\[\] must be a word"),
    "half a point": (changed("task", n=6.0), "n=6.0 must be a whole number"),
    "a gigantic model": (changed("shape", layers=10**6), "layers=1000000 must be .* to 128"),
    "unlike sizes": (changed("task", n=7), "shape and task must have the same d and n"),
}


@pytest.mark.parametrize(("card", "reason"), BAD.values(), ids=BAD)
def test_a_card_that_is_no_recipe_is_refused_with_its_reason(card: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        Recipe.from_card(card)


def test_another_recipe_is_not_mixed_in(tmp_path: Path) -> None:
    train(TINY, tmp_path / "run", CPU, stop=lambda: True)
    other = Recipe(**{**vars(TINY), "seed": 1})
    with pytest.raises(CheckpointError, match="run holds the training of another recipe"):
        train(other, tmp_path / "run", CPU)


def test_training_learns(tmp_path: Path) -> None:
    recipe = Recipe(**{**vars(TINY), "steps": 500, "batch": 32, "every": 500, "rate": 3e-3})
    card = train(recipe, tmp_path / "run", CPU)
    untrained = train(TINY, tmp_path / "none", CPU, stop=lambda: True)
    assert card["figures"]["gap_to_krr"] < 0.85 * untrained["figures"]["gap_to_krr"]
    assert gaps(load(tmp_path / "run")[0], recipe.task)["gap_to_krr"] == pytest.approx(
        card["figures"]["gap_to_krr"], rel=1e-6
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_answers_are_scikit_learns(kernel: str) -> None:
    task = Task(d=2, n=7, kernel=kernel, bandwidth=(0.4, 0.9), ridge=(0.05, 0.3))
    prompts = draw(task, 3, torch.Generator().manual_seed(2))
    found = answers(prompts)
    for p in range(3):
        s, r = float(prompts.bandwidth[p]), float(prompts.ridge[p])
        X, y = prompts.X[p].numpy(), prompts.y[p].numpy()
        k = {
            "gaussian": RBF(s),
            "laplacian": Matern(s, nu=0.5),
            "matern32": Matern(s, nu=1.5),
            "linear": DotProduct(0),
        }[kernel]
        scale = s**2 if kernel == "linear" else 1
        for n in (1, 4, 7):
            ridge = KernelRidge(alpha=cast("Any", r), kernel="precomputed").fit(
                k(X[:n]) / scale, y[:n]
            )
            expected = ridge.predict(k(X[n : n + 1], X[:n]) / scale)[0]
            assert float(found[p, n]) == pytest.approx(expected, abs=1e-9)
        assert 0.4 <= s <= 0.9
        assert 0.05 <= r <= 0.3


def test_draws_have_the_kernels_covariance_and_the_noise_they_name() -> None:
    prompts = draw(Task(n=3), 20_000, torch.Generator().manual_seed(3))
    assert float(prompts.y.var()) == pytest.approx(1, abs=0.03)
    noise = (prompts.y - prompts.noiseless) * np.sqrt(1.1)
    assert float(noise.var()) == pytest.approx(0.1, rel=0.03)
    f, X = prompts.noiseless * np.sqrt(1.1), prompts.X
    expected = torch.exp(-((X[:, 0] - X[:, 1]) ** 2).sum(-1) / 0.5)
    assert float((f[:, 0] * f[:, 1] - expected).mean()) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_makes_a_model(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.learning_rate(0) < recipe.rate
    assert recipe.learning_rate(recipe.warm_up) == recipe.rate
    assert recipe.learning_rate(recipe.steps) == pytest.approx(0, abs=1e-12)


def test_no_two_steps_of_any_seed_are_asked_the_same_prompts() -> None:
    recipes = [Recipe(**{**vars(TINY), "seed": seed}) for seed in (0, 1, 2, 2047)]
    # Their first input; gaps' and probing's are not among them either.
    asked = [batch_of(recipe, step).X[0, 0] for recipe in recipes for step in (0, 1, 2, 10**6 - 1)]
    asked += [
        draw(TINY.task, 1, torch.Generator().manual_seed(seed)).X[0, 0] for seed in (10**6, 2**31)
    ]
    assert len({tuple(x.tolist()) for x in asked}) == len(asked)
    for name, value in (("seed", 2048), ("steps", 10**6 + 1)):
        with pytest.raises(ValueError, match=f"{name}={value} must be at most"):
            Recipe(**{**vars(TINY), name: value})
