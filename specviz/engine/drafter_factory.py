"""A fresh drafter for a run, by the name of its method, folder or plug-in."""

from __future__ import annotations

from specviz.drafters import plugin
from specviz.drafters.autoregressive import AutoregressiveDrafter, first_layers
from specviz.drafters.base import Drafter
from specviz.drafters.lookup_first import LookupFirst
from specviz.drafters.names import LOOKUP_FIRST, check_drafter, plugin_parts
from specviz.drafters.ngram import NgramDrafter
from specviz.engine.model_store import STORE, LoadedModel, ModelStore
from specviz.loader.pairs import Pair
from specviz.trace.records import Settings
from specviz.worker import Job

FIRST_LAYERS = 6
"""Layers of the target that the `first-layers` drafter uses (at most half of them)."""


def make_drafter(
    name: str,
    pair: Pair,
    target: LoadedModel,
    settings: Settings,
    store: ModelStore = STORE,
    job: Job | None = None,
) -> Drafter:
    """A new drafter for one run, with shared weights; its distributions are warped by `settings`.

    Raises PairError for a name that the pair does not have, FetchError for a folder without a drafter, PluginError for
    faults of a plug-in.
    """
    check_drafter(pair, name)
    model = target.model
    if plugin_parts(name):
        return plugin.load(name)(model, settings)
    if name == "ngram":
        return NgramDrafter(model.vocab_size, model.device)
    if name == LOOKUP_FIRST:
        behind = store.trained_drafter(target, pair.target, "parallel")(settings)
        return LookupFirst(behind, model.vocab_size, model.device)
    if name == "first-layers":
        layers = max(1, min(FIRST_LAYERS, model.layers // 2))
        return first_layers(model, store.first_layers(target, pair.target, layers), settings)
    if name == "autoregressive" and pair.draft is not None:
        draft = store.open(pair.draft, target.device, target.precision, job)
        return AutoregressiveDrafter(
            draft.model,
            model.vocab_size,
            settings,
            label=f"autoregressive: {pair.draft.name} drafts one token at a time",
        )
    return store.trained_drafter(target, pair.target, name)(settings)
