"""Reads the config.json of a Hub model by its id: from the local cache, else over the network."""

from __future__ import annotations

from specviz.errors import FetchError, SettingsError
from specviz.hardware import shapes
from specviz.loader.hub_errors import explain


def hub_config(repo: str, revision: str | None = None) -> dict:
    """The config.json of a Hub model: from the local Hub cache, else over the network (some kilobytes).

    Raises FetchError with a sentence if it cannot be had.
    """
    import huggingface_hub

    repo = repo.strip()
    if repo.count("/") != 1:
        raise SettingsError(
            f"{repo[:60]!r} is neither a built-in shape ({', '.join(shapes.CONFIGS)}) "
            "nor a Hub id such as Qwen/Qwen3-8B."
        )
    try:
        found = huggingface_hub.try_to_load_from_cache(repo, "config.json", revision=revision)
        path = (
            found
            if isinstance(found, str)
            else huggingface_hub.hf_hub_download(repo, "config.json", revision=revision, etag_timeout=10)
        )
        with open(path, encoding="utf-8") as file:
            return shapes.parse_config(file.read(shapes.LARGEST_CONFIG + 1))
    except SettingsError:
        raise
    except Exception as error:  # the client raises its own, its HTTP library's and OSErrors
        raise FetchError(explain(error, repo, revision)) from None
