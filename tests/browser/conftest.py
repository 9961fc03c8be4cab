"""A real browser on a real server: what the tests of pages share.

`page` is a browser page that tolerates no error and no request that leaves the machine, `app` a
running server's address, `serve` gives one that nobody has opened yet, `settled` waits for a page
to come to rest. One load of a page takes seconds: tests of the same picture share it, and numbers
that do not matter are small.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    WebSocket,
    sync_playwright,
)

ROOT = Path(__file__).parents[2]
NO_BROWSER = "no chromium found: browser tests skipped (apt-get install chromium)"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OUTSIDE = re.compile(r"^(https?|wss?)://(?!(localhost|127\.0\.0\.1|\[::1\])(:|/|$))")

# Streamlit's command line, in a process that says on stderr whenever it reaches beyond the machine.
WATCHED_STREAMLIT = """
import runpy, sys

def watch(event, args):
    if event == "socket.getaddrinfo":
        host = args[0]
    elif event == "socket.connect" and isinstance(args[1], tuple):
        host = args[1][0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host not in (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"):
        print("LEFT THE MACHINE:", event, host, file=sys.stderr, flush=True)

sys.addaudithook(watch)
runpy.run_module("streamlit", run_name="__main__", alter_sys=True)
"""

# At rest: the script has run, all figures (they live in shadow roots) are drawn, and it stays so: a
# click takes a moment to reach the server, during which the page still looks settled.
SETTLED = """
() => {
  const app = document.querySelector('[data-testid="stApp"]')?.dataset;
  const shadows = [...document.querySelectorAll('*')].flatMap(element => element.shadowRoot ?? []);
  const figures = [document, ...shadows].flatMap(
    root => [...root.querySelectorAll('[data-testid="figures"], [data-testid="heatmaps"]')]);
  const still = app?.testScriptState === 'notRunning' && app.testConnectionState === 'CONNECTED'
    && figures.length > 0 && figures.every(figure => figure.dataset.ready === 'true');
  window.settledSince = still ? window.settledSince ?? performance.now() : undefined;
  return still && performance.now() - window.settledSince > 300;
}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="session", autouse=True)
def chromium() -> str:
    """Path of the browser's program; without one, every test of this folder is skipped."""
    found = os.environ.get("KRRVIZ_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), "")
    if not found:
        if os.environ.get("KRRVIZ_REQUIRE_BROWSER") == "1":
            pytest.fail("no chromium found, and KRRVIZ_REQUIRE_BROWSER=1", pytrace=False)
        pytest.skip(NO_BROWSER)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests skipped for want of a browser share one line of the summary: the folder's."""
    report = yield
    if report.skipped and NO_BROWSER in str(report.longrepr):
        report.longrepr = (str(Path(__file__).parent), None, NO_BROWSER)  # pyright: ignore[reportAttributeAccessIssue]
    return report


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield browser
        browser.close()


@contextlib.contextmanager
def server(root: Path = ROOT) -> Iterator[str]:
    """A fresh server's address; it is stopped afterwards, and must not have left the machine.

    ``root`` holds the app: this tree, or a copy of it.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", WATCHED_STREAMLIT, "run", "app.py", f"--server.port={port}"]
    env = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    with tempfile.TemporaryFile("w+") as log:

        def said() -> str:
            log.seek(0)
            return log.read()

        process = subprocess.Popen(
            command, cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            url = f"http://localhost:{port}"
            deadline = time.monotonic() + 60
            while not healthy(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"the server did not start:\n{said()}", pytrace=False)
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert "LEFT THE MACHINE" not in said(), said()


def healthy(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/_stcore/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    """Address of one server for all tests of a file."""
    with server() as url:
        yield url


@pytest.fixture(scope="session")
def visited() -> set[str]:
    """Hosts, with ports, that some page has asked for anything."""
    return set()


@pytest.fixture
def serve(app: str, visited: set[str]) -> Iterator[Callable[..., str]]:
    """Call it for the address of a server that nobody has opened yet, of this tree or a copy.

    The file's own server is one until its first visit.
    """
    with contextlib.ExitStack() as servers:

        def fresh(root: Path = ROOT) -> str:
            if root == ROOT and urlsplit(app).netloc not in visited:
                return app
            return servers.enter_context(server(root))

        yield fresh


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What the pages of a file share: the browser's cache, so that only the first fills it."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.route(OUTSIDE, lambda route: route.abort())
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, serve: Callable[..., str], visited: set[str]) -> Iterator[Page]:
    """A page of 1440 × 900 that fails its test on any error and on any request to elsewhere.

    It closes before the servers of `serve` stop, so that their end is no error.
    """
    with guarded(context, visited) as page:
        yield page


@contextlib.contextmanager
def watched(browser: Browser, **look: Any) -> Iterator[Page]:
    """A page as `page`, in a clean profile of its own."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **look})
    context.route(OUTSIDE, lambda route: route.abort())
    with guarded(context, set()) as page:
        yield page
    context.close()


@contextlib.contextmanager
def guarded(context: BrowserContext, visited: set[str]) -> Iterator[Page]:
    """A page whose errors, and requests to elsewhere, fail at its end."""
    wrong: list[str] = []

    def console(message: ConsoleMessage) -> None:
        # Opened at a page's address, Streamlit's client looks for its server beneath that first.
        probed = re.search(r"/\w+/_stcore/", message.location.get("url", ""))
        if message.type == "error" and not probed:
            wrong.append(f"console: {message.text} ({message.location.get('url')})")

    def request(request: Request) -> None:
        visited.add(urlsplit(request.url).netloc)
        if OUTSIDE.match(request.url):
            wrong.append(f"request left the machine: {request.url}")

    def websocket(socket: WebSocket) -> None:
        if OUTSIDE.match(socket.url):
            wrong.append(f"socket left the machine: {socket.url}")

    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(f"page: {error}"))
    page.on("console", console)
    page.on("request", request)
    page.on("websocket", websocket)
    yield page
    page.close()
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="session")
def settled() -> Callable[[Page], None]:
    """Call it with a page to wait (2 min at most) until that has nothing left to do or to draw."""

    def wait(page: Page) -> None:
        page.evaluate("window.settledSince = undefined")
        page.wait_for_function(SETTLED, timeout=120_000, polling=50)
        crash = page.get_by_test_id("stException")
        assert crash.count() == 0, crash.first.inner_text()

    return wait
