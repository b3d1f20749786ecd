"""What the controls of the Bottleneck page say: a device with its roofs, a model's shape, and a pass. All in the
address, so that a link brings them back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from specviz.errors import SpecVizError
from specviz.hardware import catalogue, ceilings, machine, shapes
from specviz.hardware.costs import ModelShape
from specviz.hardware.memory import free_memory_bytes
from specviz.loader.hub_config import hub_config
from specviz.loader.llama import LlamaConfig
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.loader.precision import resolve_precision
from specviz.models.fused import with_storage_width
from specviz.trace.records import MAX_K, Ceilings

HERE, OWN = "This machine (measured)", "Your own"
EMBEDDED_SHAPE = "SmolLM2-135M"
FIRST_LAYERS, ONE_LAYER = "Its own first layers (a fifth)", "One layer of it"
WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int4": 4.0}
"""Bytes of a number that is computed with."""
STORED = {"As it is computed": None, "8 bit": 1.0, "4 bit with scales": 4.5 / 8}
CONTEXTS = [0, 32, 128, 512, 2048, 8192, 32768, 131072]


@dataclass(frozen=True)
class Setup:
    """A device, a model and a pass."""

    device: str
    """The catalogue's name, HERE or OWN."""
    torch_device: str
    """Where measurements are made: this machine's device, whatever is modelled."""
    precision: str
    roofs: Ceilings | None
    """None: this machine's are not measured yet in this precision."""
    memory: float
    """Bytes that the device has (free ones on this machine)."""
    provenance: str
    """Where the roofs come from, in words."""
    name: str
    config: dict
    shape: ModelShape
    draft: ModelShape
    batch: int
    k: int
    context: int

    @property
    def here(self) -> bool:
        """True: the device is this machine, so that steps can be timed."""
        return self.device == HERE

    @property
    def where(self) -> str:
        """The device in running text."""
        return "this machine" if self.here else self.device

    @property
    def embedded(self) -> bool:
        """True: the model is the one whose weights come with the lab."""
        return self.name == EMBEDDED_SHAPE


def controls() -> Setup:
    """The controls, and what they say. Raises SpecVizError for a model that cannot be counted or found."""
    first, second, third, fourth = st.columns(4)
    names = [HERE, *(d.name for d in catalogue.DEVICES), OWN]
    device = first.selectbox(
        "Device",
        names,
        key="chip",
        bind="query-params",
        help="Roofs are measured here, or taken from a maker's datasheet (dense peaks)",
    )
    typed = second.selectbox(
        "Model",
        list(shapes.CONFIGS),
        key="shape",
        accept_new_options=True,
        bind="query-params",
        help="Only its shape is needed. Type any Hugging Face id, such as Qwen/Qwen3-8B: its "
        "config.json alone is fetched, no weights.",
    )
    here = machine.resolve_device("auto")
    if device == HERE:
        own = st.session_state.get("config-file") or (st.session_state.get("config-text") or "").strip()
        known = find_pair(EMBEDDED).target if typed in (None, EMBEDDED_SHAPE) and not own else None
        usual = resolve_precision("auto", here, known)
        # weights in 4 bits are those that were published so: noise cannot be held in them
        options = [usual, *(p for p in ceilings.DTYPES if p != usual and (known or p != "int4"))]
        precision = third.selectbox(
            "Precision",
            options,
            key="peak",
            bind="query-params",
            help="Of weights, cache and arithmetic. Each has roofs of its own.",
        )
        roofs, memory = ceilings.cached(here, precision), float(free_memory_bytes(here))
        provenance = f"Measured on {machine.device_name(here)} ({here}, {precision})."
    else:
        chosen = _own() if device == OWN else catalogue.device(device)
        precision = third.selectbox("Precision", list(chosen.peaks), key="peak", bind="query-params")
        roofs, memory, provenance = chosen.ceilings(precision), chosen.memory, chosen.provenance
    stored = fourth.selectbox(
        "Weights stored",
        list(STORED),
        key="stored",
        bind="query-params",
        disabled=device == HERE,
        help="Quantized weights make less traffic; the arithmetic stays in the precision chosen.",
    )
    first, second, third, fourth = st.columns(4)
    batch = first.slider("Batch (rows)", 1, 256, 1, key="rows", bind="query-params")
    k = second.slider(
        "K (drafts)",
        1,
        MAX_K,
        4,
        key="drafts",
        bind="query-params",
        help="A verify pass forwards the anchor and K drafts: K + 1 positions",
    )
    context = third.select_slider("Context (tokens)", CONTEXTS, 128, key="cached", bind="query-params")
    drafter = fourth.selectbox(
        "Drafter",
        [FIRST_LAYERS, ONE_LAYER, *shapes.CONFIGS],
        key="drafting",
        bind="query-params",
        help="Whose draft step is modelled beside the target's steps",
    )
    name, config = _model(typed or EMBEDDED_SHAPE)
    shape = _stored(shapes.from_config(config, name), precision, None if device == HERE else STORED[stored])
    if device == HERE and here == "cpu" and LlamaConfig.from_dict(config) is not None:
        shape = with_storage_width(shape, precision)
    draft = (
        _layers(shape, max(1, shape.layers // 5))
        if drafter == FIRST_LAYERS
        else _layers(shape, 1)
        if drafter == ONE_LAYER
        else _stored(shapes.shape(drafter), precision, None)
    )
    given = "" if name in shapes.CONFIGS or name == typed else f" Model: {name}, from the config.json given above."
    st.caption(f"Roofs: {provenance}{given}")
    return Setup(device, here, precision, roofs, memory, provenance, name, config, shape, draft, batch, k, context)


def _own() -> catalogue.Device:
    first, second, third = st.columns(3)
    bandwidth = first.number_input("Bandwidth (GB/s)", 1.0, 100_000.0, 1000.0, key="own-bandwidth", bind="query-params")
    peak = second.number_input("Dense peak (TFLOP/s)", 0.01, 100_000.0, 100.0, key="own-peak", bind="query-params")
    memory = third.number_input("Memory (GB)", 1.0, 10_000.0, 24.0, key="own-memory", bind="query-params")
    return catalogue.own(bandwidth * 1e9, peak * 1e12, memory * 1e9)


def _model(typed: str) -> tuple[str, dict]:
    """Name and config: of the config.json that was given, of a built-in shape, or of a Hub id."""
    with st.popover("A config.json of your own", icon=":material/upload_file:"):
        file = st.file_uploader("Upload", type=["json"], key="config-file")
        text = st.text_area(
            "or paste it",
            key="config-text",
            height=120,
            max_chars=shapes.LARGEST_CONFIG,
            placeholder='{"model_type": "llama", "hidden_size": 4096, …}',
        )
    if file is not None or (text or "").strip():
        config = shapes.parse_config(file.getvalue() if file is not None else text)
        return str(config.get("_name_or_path") or f"your {config.get('model_type', 'model')}")[:60], config
    for name in shapes.CONFIGS:
        if name.lower() == typed.strip().lower():
            return name, shapes.CONFIGS[name]
    config, error = _hub(typed)
    if config is None:
        raise SpecVizError(error)
    return typed.strip(), config


@st.cache_data(ttl=120, max_entries=50, show_spinner="Looking up the model's config.json")
def _hub(repo: str) -> tuple[dict | None, str]:
    """A config, or the sentence that says why there is none: neither is asked for at every movement of a slider."""
    try:
        return hub_config(repo), ""
    except SpecVizError as error:
        return None, str(error)


def _stored(shape: ModelShape, precision: str, width: float | None) -> ModelShape:
    """The shape with its weights in the width asked for. What is published in fewer bits stays so."""
    computed = WIDTH[precision]
    published = shape.weight_bytes if shape.weight_bytes < 2 else computed
    experts = shape.expert_weight_bytes if width is None else None
    return replace(
        shape,
        weight_bytes=min(computed, published) if width is None else width,
        expert_weight_bytes=experts,
        cache_bytes=max(computed, 2.0),
        activation_bytes=max(computed, 2.0),
    )


def _layers(shape: ModelShape, layers: int) -> ModelShape:
    """The first layers of a shape, its embedding and head kept."""
    return replace(
        shape,
        name=f"{layers} layers of {shape.name}",
        layers=layers,
        windows=shape.windows and shape.windows[:layers],
        dense_layers=min(shape.dense_layers, layers),
        small_weights=shape.small_weights * layers // shape.layers,
    )
