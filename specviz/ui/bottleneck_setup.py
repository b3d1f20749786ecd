"""The controls of the Bottleneck page: a device with its roofs, a model's shape, and a pass; all in the address."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

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
from specviz.ui.address import BOUND

HERE, OWN = "This machine (measured)", "Your own"
EMBEDDED_SHAPE = "SmolLM2-135M"
FIRST_LAYERS, ONE_LAYER = "Its own first layers (a fifth)", "One layer of it"
WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int4": 4.0}
"""Bytes of a number in each precision of the arithmetic."""
STORED = {"As it is computed": None, "8 bit": 1.0, "4 bit with scales": 4.5 / 8}
CONTEXTS = [0, 32, 128, 512, 2048, 8192, 32768, 131072]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A device, a model and a pass."""

    device: str
    """The catalogue's name, HERE or OWN."""
    torch_device: str
    """The torch device of this machine, where measurements are made."""
    precision: str
    roofs: Ceilings | None
    """None: this machine's are not measured yet in this precision."""
    memory: float
    """Bytes of the device's memory (on this machine: free ones)."""
    provenance: str
    """The source of the roofs, in words."""
    name: str
    config: dict
    shape: ModelShape
    draft: ModelShape
    batch: int
    k: int
    context: int

    @property
    def here(self) -> bool:
        """Whether the device is this machine, so that steps can be timed."""
        return self.device == HERE

    @property
    def where(self) -> str:
        """The device in running text."""
        return "this machine" if self.here else self.device

    @property
    def embedded(self) -> bool:
        """Whether the model is the embedded one, whose weights come with SpecViz."""
        return self.name == EMBEDDED_SHAPE


def controls() -> Setup:
    """The controls and their values. Raises SpecVizError for a model that cannot be counted or found."""
    first, second, third, fourth = st.columns(4)
    names = [HERE, *(d.name for d in catalogue.DEVICES), OWN]
    device = first.selectbox(
        "Device",
        names,
        key="chip",
        **BOUND,
        help="Roofs are measured here, or taken from a maker's datasheet (dense peaks)",
    )
    typed = second.selectbox(
        "Model",
        list(shapes.CONFIGS),
        key="shape",
        accept_new_options=True,
        **BOUND,
        help="Only its shape is needed. Type any Hugging Face id, such as Qwen/Qwen3-8B: its "
        "config.json alone is fetched, no weights.",
    )
    here = machine.resolve_device("auto")
    precision, roofs, memory, provenance = _roofs(device, here, typed, third)
    stored = fourth.selectbox(
        "Weights stored",
        list(STORED),
        key="stored",
        **BOUND,
        disabled=device == HERE,
        help="Quantized weights make less traffic; the arithmetic stays in the precision chosen.",
    )
    first, second, third, fourth = st.columns(4)
    batch = first.slider("Batch (rows)", 1, 256, 1, key="rows", **BOUND)
    k = second.slider(
        "K (drafts)",
        1,
        MAX_K,
        4,
        key="drafts",
        **BOUND,
        help="A verify pass forwards the anchor and K drafts: K + 1 positions",
    )
    context = third.select_slider("Context (tokens)", CONTEXTS, 128, key="cached", **BOUND)
    drafter = fourth.selectbox(
        "Drafter",
        [FIRST_LAYERS, ONE_LAYER, *shapes.CONFIGS],
        key="drafting",
        **BOUND,
        help="The model whose draft step is shown beside the target's steps",
    )
    name, config = _model(typed or EMBEDDED_SHAPE)
    shape = _stored(shapes.from_config(config, name), precision, None if device == HERE else STORED[stored])
    if device == HERE and here == "cpu" and LlamaConfig.from_dict(config) is not None:
        shape = with_storage_width(shape, precision)
    given = "" if name in shapes.CONFIGS or name == typed else f" Model: {name}, from the config.json given above."
    st.caption(f"Roofs: {provenance}{given}")
    return Setup(
        device=device,
        torch_device=here,
        precision=precision,
        roofs=roofs,
        memory=memory,
        provenance=provenance,
        name=name,
        config=config,
        shape=shape,
        draft=_draft_shape(drafter, shape, precision),
        batch=batch,
        k=k,
        context=context,
    )


def _roofs(device: str, here: str, typed: str | None, place: DeltaGenerator) -> tuple[str, Ceilings | None, float, str]:
    """The choice of a precision, drawn in `place`; with it the roofs, the memory in bytes, and their source."""
    if device != HERE:
        chosen = _own() if device == OWN else catalogue.device(device)
        precision = place.selectbox("Precision", list(chosen.peaks), key="peak", **BOUND)
        return precision, chosen.ceilings(precision), chosen.memory, chosen.provenance
    own = st.session_state.get("config-file") or (st.session_state.get("config-text") or "").strip()
    known = find_pair(EMBEDDED).target if typed in (None, EMBEDDED_SHAPE) and not own else None
    usual = resolve_precision("auto", here, known)
    # int4 needs weights that were quantised before: random ones are not stored in 4 bits
    options = [usual, *(p for p in ceilings.DTYPES if p != usual and (known or p != "int4"))]
    precision = place.selectbox(
        "Precision",
        options,
        key="peak",
        **BOUND,
        help="Of weights, cache and arithmetic. Each has its own roofs.",
    )
    provenance = f"Measured on {machine.device_name(here)} ({here}, {precision})."
    return precision, ceilings.cached(here, precision), float(free_memory_bytes(here)), provenance


def _draft_shape(drafter: str, target: ModelShape, precision: str) -> ModelShape:
    if drafter == FIRST_LAYERS:
        return _layers(target, max(1, target.layers // 5))
    if drafter == ONE_LAYER:
        return _layers(target, 1)
    return _stored(shapes.shape(drafter), precision, None)


def _own() -> catalogue.Device:
    first, second, third = st.columns(3)
    bandwidth = first.number_input("Bandwidth (GB/s)", 1.0, 100_000.0, 1000.0, key="own-bandwidth", **BOUND)
    peak = second.number_input("Dense peak (TFLOP/s)", 0.01, 100_000.0, 100.0, key="own-peak", **BOUND)
    memory = third.number_input("Memory (GB)", 1.0, 10_000.0, 24.0, key="own-memory", **BOUND)
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
    found, error = _hub(typed)
    if found is None:
        raise SpecVizError(error)
    return typed.strip(), found


@st.cache_data(ttl=120, max_entries=50, show_spinner="Looking up the model's config.json")
def _hub(repo: str) -> tuple[dict | None, str]:
    """A config, or the sentence why there is none. Cached, so that sliders do not ask the Hub again."""
    try:
        return hub_config(repo), ""
    except SpecVizError as error:
        return None, str(error)


def _stored(shape: ModelShape, precision: str, width: float | None) -> ModelShape:
    """The shape with weights of this width in bytes (None: that of the precision, or narrower if published so)."""
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
