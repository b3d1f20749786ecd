"""Turns errors of the Hub's client into sentences that say what to do."""

from __future__ import annotations

import errno
import socket

_UNREACHABLE = {
    "ConnectError",
    "ConnectTimeout",
    "ReadTimeout",
    "ConnectionError",
    "ProxyError",
    "ReadError",
    "RemoteProtocolError",
    "NetworkError",
}
"""Errors of the client's HTTP library, which is not a dependency of SpecViz: by the names of their classes."""


def explain(error: BaseException, repo: str, revision: str | None) -> str:
    """An error of the Hub's client as one sentence that says what to do. Contains no headers and no token."""
    from huggingface_hub import errors

    chain = _chain(error)

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(e, kinds) for e in chain)

    codes = (getattr(getattr(e, "response", None), "status_code", None) for e in chain)
    status = next((code for code in codes if code), None)
    if has(errors.GatedRepoError):
        return (
            f"{repo} is gated: accept the licence at https://huggingface.co/{repo} and run `hf auth login`, "
            "then try again."
        )
    if has(errors.RevisionNotFoundError):
        return f"{repo} has no revision {revision!r}: leave it out, or look one up on the model's page."
    if has(errors.RepositoryNotFoundError, errors.HFValidationError) or status in (401, 404):
        return (
            f"There is no model {repo} on the Hub, or it is private: check the spelling, and for a private one "
            "run `hf auth login`."
        )
    if has(errors.DisabledRepoError):
        return f"The Hub has disabled {repo}: choose another model."
    if status == 429:
        return "The Hub asks for a pause (too many requests): wait some minutes, or run `hf auth login`."
    if any(isinstance(e, OSError) and e.errno == errno.ENOSPC for e in chain):
        return f"The disk filled up while {repo} was downloaded: make room, or set HF_HOME to another disk."
    if has(errors.OfflineModeIsEnabled):
        return f"{repo} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it: unset that to download."
    if status is not None and status >= 500:
        return f"The Hub answered with an error of its own ({status}): try again later."
    network = has(errors.LocalEntryNotFoundError, TimeoutError, ConnectionError, socket.gaierror)
    if network or _UNREACHABLE & {type(e).__name__ for e in chain}:
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
