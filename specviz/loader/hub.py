"""Models from the Hugging Face Hub, through its own client and into its own cache, which other tools share.

`python -m specviz.loader.hub REPO REVISION all|small` is how `fetch` runs a download: a child can be stopped at any
moment, and what it had fetched so far is taken up again by the next one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from specviz.errors import FetchError
from specviz.loader import model_folder, requirements
from specviz.loader.child_process import Job, run_child, send
from specviz.loader.pairs import Source
from specviz.loader.runnable import check_runs


def cached(source: Source) -> Path | None:
    """The snapshot folder of a repository if the Hub's cache holds one, whole or not; no network."""
    import huggingface_hub

    file = huggingface_hub.try_to_load_from_cache(source.repo, "config.json", revision=source.revision)
    return Path(file).parent if isinstance(file, str) else None


def download(source: Source, job: Job, weights: bool = True) -> Path:
    """The snapshot folder of a repository, downloaded as far as it is not there; without `weights` only config and
    tokenizer, some megabytes. Raises FetchError."""
    stage = f"Downloading {source.repo}"
    job.tell(f"Asking the Hub about {source.repo}")

    def on_message(message: dict) -> None:
        if "done" in message:
            job.tell(stage, message["done"], message["of"])

    arguments = [source.repo, source.revision or "", "all" if weights else "small"]
    return Path(run_child("specviz.loader.hub", arguments, job, on_message)["result"])


def snapshot(repo: str, revision: str | None, tell: Callable[[int, int], None], weights: bool = True) -> str:
    """Download what a model needs of a repository; `tell(done, of)` in bytes. Returns the folder.

    safetensors only: a repository that has its weights as pickle files alone is refused. Raises FetchError.
    """
    import huggingface_hub
    from huggingface_hub import constants

    try:
        plan = huggingface_hub.snapshot_download(repo, revision=revision, ignore_patterns=["*/*"], dry_run=True)
        chosen = set(model_folder.choose_files([file.filename for file in plan]))
        if not any(name.endswith(".safetensors") for name in chosen):
            raise FetchError(
                f"{repo} offers no safetensors weights at its top level (pickle and GGUF files are not "
                "downloaded from the Hub): choose another model, or convert it into a local folder."
            )
        if "config.json" not in chosen:
            raise FetchError(f"{repo} has no config.json: it is not a transformers model.")
        check_runs(hub_config(repo, revision), repo)
        if not weights:
            chosen = {name for name in chosen if ".safetensors" not in name}
        wanted = sum(file.file_size for file in plan if file.filename in chosen and file.will_download)
        requirements.check_disk(
            Path(constants.HF_HUB_CACHE), wanted + requirements.SPARE_DISK_BYTES, f"The model {repo}"
        )
        return huggingface_hub.snapshot_download(
            repo, revision=revision, allow_patterns=sorted(chosen), tqdm_class=_bar(tell, wanted)
        )
    except FetchError:
        raise
    except Exception as error:  # the client raises its own, its HTTP library's and OSErrors
        raise FetchError(explain(error, repo, revision)) from None


def hub_config(repo: str, revision: str | None = None) -> dict:
    """The config.json of a Hub model, downloaded alone (some kilobytes); an empty dict for one that is no object."""
    import huggingface_hub

    config = json.loads(Path(huggingface_hub.hf_hub_download(repo, "config.json", revision=revision)).read_bytes())
    return config if isinstance(config, dict) else {}


def explain(error: BaseException, repo: str, revision: str | None) -> str:
    """An error of the Hub's client as one sentence that says what to do. Carries no headers and no token."""
    from huggingface_hub import errors

    kinds = {type(e).__name__ for e in _chain(error)}
    status = next(
        (e.response.status_code for e in _chain(error) if getattr(getattr(e, "response", None), "status_code", None)),
        None,
    )
    if "GatedRepoError" in kinds:
        return (
            f"{repo} is gated: accept the licence at https://huggingface.co/{repo} and run `hf auth login`, "
            "then try again."
        )
    if "RevisionNotFoundError" in kinds:
        return f"{repo} has no revision {revision!r}: leave it out, or look one up on the model's page."
    if "RepositoryNotFoundError" in kinds or "HFValidationError" in kinds or status in (401, 404):
        return (
            f"There is no model {repo} on the Hub, or it is private: check the spelling, and for a private one "
            "run `hf auth login`."
        )
    if "DisabledRepoError" in kinds:
        return f"The Hub has disabled {repo}: choose another model."
    if status == 429:
        return "The Hub asks for a pause (too many requests): wait some minutes, or run `hf auth login`."
    if any(isinstance(e, OSError) and e.errno == 28 for e in _chain(error)):
        return f"The disk filled up while {repo} was downloaded: make room, or set HF_HOME to another disk."
    if "OfflineModeIsEnabled" in kinds:
        return f"{repo} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it: unset that to download."
    if status is not None and status >= 500:
        return f"The Hub answered with an error of its own ({status}): try again later."
    unreachable = {
        "LocalEntryNotFoundError",
        "ConnectError",
        "ConnectTimeout",
        "ReadTimeout",
        "ConnectionError",
        "ProxyError",
        "ReadError",
        "RemoteProtocolError",
        "NetworkError",
        "TimeoutError",
        "gaierror",
    }
    if kinds & unreachable or isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"The Hugging Face Hub cannot be reached, so {repo} was not fetched: check the network and proxy, or "
            "choose the embedded pair, which needs a Python package index only."
        )
    return f"{repo} could not be downloaded ({type(error).__name__}): try again."


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and len(found) < 20:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found


def _bar(tell: Callable[[int, int], None], wanted: int):
    """A progress bar class that counts bytes instead of drawing. The client makes one bar of bytes received, one
    of bytes written and one of files; the bytes written are the honest figure, as they are whole files' parts."""
    from tqdm.auto import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments, **options):
            self._counts = options.get("unit") == "B" and "Reconstructing" in str(options.get("desc"))
            options.pop("name", None)
            options["disable"] = True
            super().__init__(*arguments, **options)
            self.done = 0

        def update(self, n=1):
            if self._counts:
                self.done += int(n or 0)
                tell(min(self.done, wanted), wanted)

    return Bar


def _main(repo: str, revision: str, what: str) -> None:
    try:
        send(result=snapshot(repo, revision or None, lambda done, of: send(done=done, of=of), what == "all"))
    except FetchError as error:
        send(error=str(error))


if __name__ == "__main__":
    _main(*sys.argv[1:4])
