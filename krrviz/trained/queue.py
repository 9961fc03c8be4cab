"""Queue: one server's trainings, one at a time, each a process of its own with a time limit."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread, Timer
from typing import Literal

from krrviz.trained.train import Recipe

State = Literal["waiting", "running", "done", "cancelled", "stopped", "failed"]
NICE = 10  # trainings give way to the pages


class Job:
    """A training. Its folder lasts as long as somebody holds the job.

    state : stopped is by the time limit
    told : why it failed
    path : its checkpoint, without ending
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.path = recipe, folder / "out" / "own"
        self.file = folder / "own.json"
        self.state: State = "waiting"
        self.told = ""
        self.process: subprocess.Popen[str] | None = None
        self.began = self.ended = 0.0
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True).atexit = False

    @property
    def active(self) -> bool:
        """Whether it waits or runs."""
        return self.state in ("waiting", "running")

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return (self.ended or time.monotonic()) - self.began if self.began else 0.0


def command(job: Job) -> list[str]:
    """The program that trains a job's recipe."""
    program = [sys.executable, "-m", "krrviz", "train"]
    return [*program, "--recipe", str(job.file), "--out", str(job.path.parent)]


class Queue:
    """Jobs in the order they came. A job that nobody holds any more is not begun, or ended."""

    def __init__(self, limit: float) -> None:
        """``limit`` : seconds that a job may run; at the interpreter's end all are ended."""
        self.limit = limit
        self.folder = Path(tempfile.mkdtemp(prefix="krrviz-"))
        self._waiting: list[weakref.ref[Job]] = []
        self._running: weakref.ref[Job] | None = None
        self._changed = Condition()
        self._closed = False
        atexit.register(self.close)
        Thread(target=self._work, daemon=True).start()

    def put(self, recipe: Recipe) -> Job:
        """A new job, the last in the queue; raises OSError where its folder cannot be written."""
        job = Job(recipe, Path(tempfile.mkdtemp(dir=self.folder)))
        job.file.write_text(json.dumps(recipe.card()), "utf-8")
        with self._changed:
            self._waiting.append(weakref.ref(job))
            self._changed.notify()
        return job

    def ahead(self, job: Job) -> int:
        """How many jobs come before a waiting one."""
        with self._changed:
            jobs = [other for ref in self._waiting if (other := ref()) and other.active]
            return jobs.index(job) + (self._running is not None) if job in jobs else 0

    def cancel(self, job: Job) -> None:
        """End a job that waits or runs; what it has written stays."""
        self._end(job, "cancelled")

    def close(self) -> None:
        """End all jobs and remove their files."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            running = self._running and self._running()
        if running:
            self._end(running, "cancelled")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, job: Job, state: State) -> None:
        with self._changed:
            if not job.active:
                return
            job.state = state
            if job.process:
                job.process.kill()
                job.process.wait()

    def _expire(self, ref: weakref.ref[Job]) -> None:
        if job := ref():
            self._end(job, "stopped")

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._running = self._waiting.pop(0)
            self._run(self._running)
            self._running = None

    def _run(self, ref: weakref.ref[Job]) -> None:
        with self._changed:
            job = ref()
            if job is None or self._closed or job.state != "waiting":
                return
            try:
                # The terminal's Ctrl-C is the server's to hear; it ends its jobs itself.
                job.process = process = subprocess.Popen(
                    command(job), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                job.state, job.told = "failed", f"it cannot be started: {error}"
                return
            job.state, job.began = "running", time.monotonic()
            if sys.platform != "win32":
                with suppress(OSError):  # it has ended already
                    os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        # Whoever waited for it has gone, as with a closed tab: the next one's turn.
        weakref.finalize(job, process.kill)
        del job
        alarm = Timer(self.limit, self._expire, (ref,))
        alarm.daemon = True
        alarm.start()
        with process:
            assert process.stderr is not None
            last = deque(process.stderr, 1)  # a pipe: a full disk cannot silence it
        alarm.cancel()
        job = ref()
        if job is None:
            return
        with self._changed:
            job.ended = time.monotonic()
            if job.state == "running":
                job.state = "done"
                if process.returncode:
                    job.state = "failed"
                    job.told = _why(process.returncode, last[0].strip() if last else "")


def _why(code: int, said: str) -> str:
    if code < 0:
        return f"it was killed by signal {-code}, as for want of memory"
    return said.removeprefix("krrviz: ") or f"it ended with code {code}"
