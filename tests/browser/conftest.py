"""A browser, a server for any Streamlit script, and pages that must not ask anything of any other machine."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("SPECVIZ_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
             "--no-first-run"]
LOCAL = ("127.0.0.1", "localhost")


@pytest.fixture(scope="session")
def browser():
    """Chromium, or a skip that says why."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install one or set SPECVIZ_CHROMIUM")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    """serve(script, env) -> base URL of a Streamlit server of that script, one per script and environment."""
    servers = {}

    def start(script, env=None):
        key = (str(script), tuple(sorted((env or {}).items())))
        if key in servers:
            return servers[key][1]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = tmp_path_factory.mktemp("server") / "log.txt"
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", str(script), f"--server.port={port}",
             "--server.address=127.0.0.1", "--server.headless=true", "--server.fileWatcherType=none",
             "--browser.gatherUsageStats=false"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stdout=log.open("w"), stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{port}"
        servers[key] = process, url
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert process.poll() is None, f"the server ended:\n{log.read_text()}"
            try:
                urllib.request.urlopen(f"{url}/_stcore/health", timeout=2).close()
                return url
            except OSError:
                time.sleep(0.2)
        raise AssertionError(f"the server did not come up:\n{log.read_text()}")

    yield start
    for process, _ in servers.values():
        process.terminate()
    for process, _ in servers.values():
        process.wait(timeout=20)


@pytest.fixture
def new_page(browser):
    """new_page(**context options) -> a Page. After the test: no request left this machine, nothing went wrong."""
    contexts, foreign, errors = [], [], []

    def on_console(message):
        # the first load of a deep link asks two addresses that do not exist; Streamlit's own habit, harmless
        if message.type == "error" and "404" not in message.text:
            errors.append(message.text)

    def on_request(request):
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in LOCAL:
            foreign.append(request.url)

    def make(width=1280, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", on_console)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", on_request)
        return page

    yield make
    for context in contexts:
        context.close()
    assert foreign == [], "requests left this machine"
    assert errors == [], "errors in the browser console"


@pytest.fixture
def page(new_page):
    """A page of 1280 x 900."""
    return new_page()
