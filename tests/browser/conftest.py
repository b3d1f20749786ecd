"""A browser, a server for any Streamlit script, and pages that must not ask anything of any other machine."""

from urllib.parse import urlsplit

import app_server
import pytest
from app_server import ARGUMENTS, CHROMIUM

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
        log = tmp_path_factory.mktemp("server") / "log.txt"
        servers[key] = app_server.start(script, env or {}, log)
        return servers[key][1]

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
