"""Models from the Hugging Face Hub, through its own client and into its own cache, which other tools share.

`python -m specviz.loader.hub REPO REVISION all|small` is how `fetch` runs a download: a child can be stopped at any
moment, and what it had fetched so far is taken up again by the next one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from specviz.errors import FetchError
from specviz.loader import model_folder
from specviz.loader.child_process import run_child, send
from specviz.loader.hub_config import hub_config
from specviz.loader.hub_errors import explain
from specviz.loader.pairs import Source
from specviz.loader.runnable import check_before_download
from specviz.loader.space import SPARE_DISK_BYTES, check_disk
from specviz.worker import Job


def cached(source: Source) -> Path | None:
    """The snapshot folder of a repository if the Hub's cache holds one, whole or not; no network."""
    import huggingface_hub

    file = huggingface_hub.try_to_load_from_cache(source.repo, "config.json", revision=source.revision)
    return Path(file).parent if isinstance(file, str) else None


def download(source: Source, job: Job, weights: bool = True) -> Path:
    """The snapshot folder of a repository, downloaded as far as it is not there; without `weights` only config and
    tokenizer, some megabytes. Raises FetchError."""
    stage = f"Downloading {source.repo}"
    job.report(f"Asking the Hub about {source.repo}", 0.0)

    def on_message(message: dict) -> None:
        if "done" in message:
            job.report(stage, done_bytes=message["done"], total_bytes=message["of"])

    arguments = [source.repo, source.revision or "", "all" if weights else "small"]
    return Path(run_child("specviz.loader.hub", arguments, job, on_message)["result"])


def snapshot(repo: str, revision: str | None, report: Callable[[int, int], None], weights: bool = True) -> str:
    """Download what a model needs of a repository; `report(done, of)` in bytes. Returns the folder.

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
        check_before_download(hub_config(repo, revision), repo)
        here = sum(file.file_size or 0 for file in plan if file.filename == "config.json" and file.will_download)
        if not weights:
            chosen = {name for name in chosen if ".safetensors" not in name}
        wanted = sum(file.file_size or 0 for file in plan if file.filename in chosen and file.will_download)
        check_disk(Path(constants.HF_HUB_CACHE), wanted + SPARE_DISK_BYTES, f"The model {repo}")
        return huggingface_hub.snapshot_download(
            repo, revision=revision, allow_patterns=sorted(chosen), tqdm_class=_bar(report, wanted, here)
        )
    except FetchError:
        raise
    except Exception as error:  # the client raises its own, its HTTP library's and OSErrors
        raise FetchError(explain(error, repo, revision)) from None


def _bar(report: Callable[[int, int], None], wanted: int, here: int):
    """A progress bar class that counts bytes, from `here` on, instead of drawing.

    The client makes one bar of bytes received, one of bytes written and one of files; the bytes written count, as they
    are whole files' parts.
    """
    from tqdm.auto import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments, **options):
            self._counts = options.get("unit") == "B" and "Reconstructing" in str(options.get("desc"))
            options.pop("name", None)
            options["disable"] = True
            super().__init__(*arguments, **options)
            self.done = here

        def update(self, n=1):
            if self._counts:
                self.done += int(n or 0)
                report(min(self.done, wanted), wanted)

    return Bar


def _main(repo: str, revision: str, what: str) -> None:
    try:
        send(result=snapshot(repo, revision or None, lambda done, of: send(done=done, of=of), what == "all"))
    except FetchError as error:
        send(error=str(error))


if __name__ == "__main__":
    _main(*sys.argv[1:4])
