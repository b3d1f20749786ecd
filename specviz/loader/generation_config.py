"""Entries of generation_config.json that change a text and that SpecViz does not implement, or takes from the user."""

from __future__ import annotations

import json
from pathlib import Path

NEUTRAL: dict[str, tuple] = {
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": ([],),
    "forced_decoder_ids": ([],),
    "sequence_bias": ({}, []),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "dola_layers": (),
    "stop_strings": ([], ""),
    "remove_invalid_values": (False,),
}
"""Entries that change a text and that SpecViz does not do, each with its neutral values; null is always neutral."""
SAMPLING = ("temperature", "top_p", "top_k")


def read(folder: Path) -> dict:
    """The entries of a model folder's generation_config.json; none if there is no such file or it is damaged."""
    try:
        found = json.loads((Path(folder) / "generation_config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def unsupported(folder: Path) -> dict:
    """The entries of a model folder that request something SpecViz does not implement."""
    entries = read(folder)
    return {k: entries[k] for k, none in NEUTRAL.items() if entries.get(k) is not None and entries[k] not in none}


def note(folder: Path) -> str:
    """A note on entries that a run does not apply by itself; "" if there are none."""
    entries, asked = read(folder), unsupported(folder)
    said = []
    if asked:
        said.append(
            f"This model's generation_config asks for {_listed(asked)}, which SpecViz does not do: a program that "
            "obeys it writes another text."
        )
    suggested = {name: entries[name] for name in SAMPLING if entries.get(name) is not None}
    if entries.get("do_sample") is True and suggested:
        said.append(f"Its generation_config suggests {_listed(suggested)}; a run uses the settings it was given.")
    return " ".join(said)


def _listed(entries: dict) -> str:
    return ", ".join(f"{name} {_brief(value)}" for name, value in entries.items())


def _brief(value) -> str:
    words = json.dumps(value)
    return words if len(words) <= 40 else words[:37] + "..."
