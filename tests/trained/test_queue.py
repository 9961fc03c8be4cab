"""The queue runs one training at a time and leaves neither process nor file behind."""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from krrviz.trained import queue
from krrviz.trained.gpt import Shape, load
from krrviz.trained.prompts import Task
from krrviz.trained.queue import Job, Queue
from krrviz.trained.train import Recipe

TINY = Recipe(
    shape=Shape(n=4, layers=1, width=8, heads=2), task=Task(n=4), steps=4, batch=4, every=2
)
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def line() -> Iterator[Queue]:
    made = Queue(limit=60)
    yield made
    made.close()
    assert not made.folder.exists()


def programs(monkeypatch: pytest.MonkeyPatch, *sources: str) -> None:
    """Let the jobs run these programs, one after the other, instead of trainings."""
    left = iter(sources)
    monkeypatch.setattr(queue, "command", lambda job: [sys.executable, "-c", next(left)])


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(job: Job) -> str:
    until(lambda: not job.active)
    return job.state


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_job_trains_its_recipe(line: Queue) -> None:
    job = line.put(TINY)
    assert (ended(job), job.told) == ("done", "")
    card = load(job.path)[1]
    assert Recipe.from_card(card["recipe"]) == TINY
    assert card["steps"] == 4
    assert job.seconds > 0


def test_a_job_that_nobody_holds_any_more_makes_room(
    line: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(monkeypatch, SLEEP, "")
    job: Job | None = line.put(TINY)
    until(lambda: job is not None and job.state == "running")
    process = job.process if job else None
    assert process is not None
    other = line.put(TINY)
    job = None
    gc.collect()
    assert ended(other) == "done"
    assert process.poll() is not None


def test_two_jobs_run_one_after_the_other(line: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    nap = "import time; time.sleep(.3)"
    programs(monkeypatch, nap, nap)
    first, second = line.put(TINY), line.put(TINY)
    until(lambda: first.state == "running")
    assert (second.state, line.ahead(second), line.ahead(first)) == ("waiting", 1, 0)
    assert ended(second) == "done"
    assert first.state == "done"
    assert second.began >= first.ended


def test_cancelling_ends_the_process_and_keeps_its_files(
    line: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(monkeypatch, SLEEP)
    running, waiting = line.put(TINY), line.put(TINY)
    until(lambda: running.state == "running")
    assert running.process is not None
    line.cancel(waiting)
    line.cancel(running)
    assert (running.state, waiting.state) == ("cancelled", "cancelled")
    assert running.process.poll() == -signal.SIGKILL
    assert running.file.exists()
    line.cancel(running)  # twice does no harm
    until(lambda: running.ended > 0)
    assert waiting.process is None


def test_a_job_beyond_the_time_limit_is_stopped(
    line: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(monkeypatch, SLEEP, "pass")
    line.limit = 0.2
    job, after = line.put(TINY), line.put(TINY)
    assert ended(job) == "stopped"
    assert 0.2 <= job.seconds < 20
    line.limit = 60
    assert ended(after) in ("done", "stopped")  # it may have begun before the limit was lifted


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import sys; sys.exit('one\\nkrrviz: run.csv cannot be written: no space')",
         "run.csv cannot be written: no space"),
        ("import sys; sys.exit(3)", "it ended with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed by signal 9, as for want of memory"),
    ],
    ids=["a message", "silence", "a kill"],
)  # fmt: skip
def test_a_failure_tells_why_and_the_next_job_runs(
    program: str, told: str, line: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(monkeypatch, program, "pass")
    job, after = line.put(TINY), line.put(TINY)
    assert (ended(job), job.told) == ("failed", told)
    assert ended(after) == "done"


def test_a_program_that_is_not_there_is_a_failure(
    line: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "command", lambda job: ["/nowhere/python"])
    job = line.put(TINY)
    assert ended(job) == "failed"
    assert job.told.startswith("it cannot be started: ")


def test_a_job_that_nobody_holds_leaves_no_folder_and_is_not_begun(
    line: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(monkeypatch, "import time; time.sleep(.3)", "pass")
    first, second, third = (line.put(TINY) for _ in range(3))
    folder = second.file.parent
    assert folder.exists()
    del second
    gc.collect()
    assert not folder.exists()
    assert ended(third) == "done"  # with the second program
    assert first.state == "done"


def test_closing_leaves_neither_process_nor_file(monkeypatch: pytest.MonkeyPatch) -> None:
    programs(monkeypatch, SLEEP)
    line = Queue(limit=60)
    job = line.put(TINY)
    until(lambda: job.state == "running")
    assert job.process is not None
    line.close()
    assert gone(job.process.pid)
    assert not line.folder.exists()


def test_the_end_of_the_interpreter_ends_the_job(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = f"""
import sys, time
from pathlib import Path
from krrviz.trained import queue
from krrviz.trained.train import Recipe
queue.command = lambda job: [sys.executable, "-c", {SLEEP!r}]
line = queue.Queue(60)
job = line.put(Recipe())
while job.state != "running":
    time.sleep(.01)
Path({str(told)!r}).write_text(f"{{job.process.pid}} {{line.folder}}")
"""
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program]) == 0
    pid, folder = told.read_text().split()
    until(lambda: gone(int(pid)))
    assert not Path(folder).exists()
