"""The sections of the Bottleneck page. Each takes a Setup (what the controls say) and shows one thing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from specviz import format
from specviz.costs import ModelShape
from specviz.errors import SpecVizError
from specviz.figures import busy_idle
from specviz.figures import roofline as roofline_chart
from specviz.figures import run as run_charts
from specviz.figures import steps as step_charts
from specviz.hardware import catalogue, ceilings, machine, shapes, steps
from specviz.hardware.memory import free_memory_bytes
from specviz.metrics import speed_up
from specviz.models import load
from specviz.models.pairs import EMBEDDED, find_pair
from specviz.roofline import batch_for_busy, modelled_seconds, point, round_points, step_cost
from specviz.runs import STORE
from specviz.trace import Ceilings
from specviz.ui import preparing, stage
from specviz.ui.chart import chart

HERE, OWN = "This machine (measured)", "Your own"
TARGET_BUSY, TARGET_K = 0.12, 4
_WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


@dataclass(frozen=True)
class Setup:
    """What the controls say: a device with its roofs, a model's shape, and a pass."""

    device: str
    here: bool
    precision: str
    roofs: Ceilings | None
    shape: ModelShape
    batch: int
    k: int
    context: int
    memory: float | None = None
    """Bytes that the device has; None where the model is not to be fitted."""

    @property
    def where(self) -> str:
        """The device in running text."""
        return "this machine" if self.here else self.device


def controls() -> Setup:
    """Device, model and pass; every one in the address."""
    first, second, third = st.columns(3)
    names = [HERE, *(d.name for d in catalogue.DEVICES), OWN]
    device = first.selectbox("Device", names, key="device", bind="query-params",
                             help="Roofs are measured here, or taken from a maker's datasheet (dense peaks)")
    models = [s.name for s in shapes.SHAPES]
    model = second.selectbox("Model", models, key="model", bind="query-params",
                             help="Its shape alone is needed: nothing is downloaded")
    if device == HERE:
        here = machine.resolve_device("auto")
        precision = load.resolve_precision("auto", here)
        third.text_input("Precision", f"{precision} on {machine.device_name(here)}", disabled=True)
        roofs, memory = ceilings.cached(here, precision), free_memory_bytes(here)
    else:
        chosen = _own() if device == OWN else catalogue.device(device)
        precision = third.selectbox("Precision", list(chosen.peaks), key="peak", bind="query-params")
        roofs, memory = chosen.ceilings(precision), chosen.memory
        st.caption(f"Roofs: {chosen.source} {chosen.published}. {chosen.derived}")
    first, second, third = st.columns(3)
    batch = first.slider("Batch (rows)", 1, 256, 1, key="rows", bind="query-params")
    k = second.slider("K (drafts)", 1, 16, TARGET_K, key="drafts", bind="query-params",
                      help="A verify pass forwards the anchor and K drafts: K + 1 positions")
    context = third.select_slider("Context (tokens)", [0, 32, 128, 512, 2048, 8192, 32768, 131072], 128, key="context",
                                  bind="query-params")
    width = _WIDTH[precision]
    shape = shapes.shape(model)
    shape = replace(shape, weight_bytes=width, cache_bytes=max(width, 2.0), activation_bytes=max(width, 2.0))
    return Setup(device, device == HERE, precision, roofs, shape, batch, k, context, memory)


def _own() -> catalogue.Device:
    first, second, third = st.columns(3)
    bandwidth = first.number_input("Bandwidth (GB/s)", 1.0, 100_000.0, 1000.0, key="own-bandwidth")
    peak = second.number_input("Dense peak (TFLOP/s)", 0.01, 100_000.0, 100.0, key="own-peak")
    memory = third.number_input("Memory (GB)", 1.0, 10_000.0, 24.0, key="own-memory")
    return catalogue.own(bandwidth * 1e9, peak * 1e12, memory * 1e9)


def measure_ceilings(setup: Setup) -> None:
    """The roofs of this machine, and the button that measures them."""
    here = machine.resolve_device("auto")
    if setup.roofs is not None:
        first, second, third = st.columns(3)
        for place, label, value, spread, unit in (
                (first, "Streaming read (measured)", setup.roofs.bandwidth, setup.roofs.bandwidth_spread, "B/s"),
                (second, "Matrix product (measured)", setup.roofs.flops, setup.roofs.flops_spread, "FLOP/s")):
            place.metric(label, format.si(value, unit))
            place.caption(f"{format.si(spread[0], unit)} to {format.si(spread[1], unit)}")
        third.metric("Ridge", f"{format.number(setup.roofs.ridge)} FLOP/byte")
        third.caption(f"Measured {setup.roofs.measured_at.replace('T', ' ')[:16]} UTC in {setup.precision}")
        if warning := ceilings.steady_warning(setup.roofs):
            st.warning(warning)
    else:
        st.info("The roofs of this machine are not measured yet: it takes under 10 seconds.")
    if st.button("Measure the ceilings" if setup.roofs is None else "Measure again", key="measure",
                 type="primary" if setup.roofs is None else "secondary", icon=":material/speed:"):
        bar = st.progress(0.0, "Measuring")
        ceilings.measure(here, setup.precision, lambda fraction, words: bar.progress(fraction, words))
        st.rerun()


def roofline(setup: Setup) -> None:
    """The roofline: modelled steps of the setup, and the last run's points where it was measured here."""
    needed = setup.shape.stored_bytes + setup.batch * setup.context * setup.shape.cache_bytes_per_token
    if setup.memory is not None and needed > setup.memory:
        st.warning(f"{setup.shape.name} with this batch and context needs {format.si(needed, 'B')}, and {setup.where} "
                   f"has {format.si(setup.memory, 'B')}: it does not fit. The figures below are as if it did.")
    points, labels = [], []
    for kind, k in (("plain", 0), ("verify", setup.k)):
        cost = step_cost(setup.shape, setup.batch, k, setup.context)
        points.append(point(kind, cost, modelled_seconds(cost, setup.roofs), setup.roofs))
        labels.append(f"modelled, K = {k}" if k else "modelled")
    run = stage.current()
    if setup.here and run is not None and run.rounds:
        live = round_points(run.rounds[-1], run.baseline, setup.roofs)
        points += live.values()
        labels += ["last run"] * len(live)
    data = roofline_chart.table(points, setup.roofs, labels)
    chart(roofline_chart.figure(data, setup.roofs, setup.where), data, "roofline", key="roofline")
    for p in points:
        if p.flagged:
            st.warning(p.warning)
    strip = busy_idle.table(points[:2], ["plain step", f"verify of {setup.k + 1}"])
    chart(busy_idle.figure(strip), strip, "busy-idle", key="busy")
    st.caption("Modelled: time is what the slower of the two roofs allows, traffic and arithmetic overlapping fully. "
               "The memory lane is full by that assumption wherever memory binds; measured steps, below, also show "
               "what neither roof explains.")


def briefing(setup: Setup) -> None:
    """The batch at which a plain step is 12 % busy, and the verify of 5 beside it."""
    st.subheader("12 % and 58 %")
    pair = batch_for_busy(setup.shape, setup.roofs, TARGET_BUSY, TARGET_K, setup.context)
    if pair is None:
        st.info(f"On these roofs no batch makes a plain step of {setup.shape.name} about 12 % busy at a context of "
                f"{setup.context}: "
                + ("one row is busier already." if setup.roofs.ridge < 5 else "each row adds traffic of its own."))
    else:
        st.markdown(f"**Modelled** on {setup.where}: with **{pair.batch} row{'s' if pair.batch > 1 else ''}** a plain "
                    f"step keeps compute busy for **{format.percent(pair.plain.busy_fraction)}** of "
                    f"{format.seconds(pair.plain.seconds)}; verifying 5 positions a row (K = 4) for "
                    f"**{format.percent(pair.verify.busy_fraction)}** of {format.seconds(pair.verify.seconds)}.")
    st.caption("The two figures assume: weights are read once per pass and that read sets the time; 5 positions do 5 "
               "times the arithmetic of 1, so 12 % becomes just under 60 %; and the batch is one at which a plain step "
               "happens to be 12 % busy. At batch 1 on a large accelerator a plain step is under 1 % busy.")
    if setup.here and st.button("Run it on this machine", key="run-12", icon=":material/play_arrow:",
                                help="Times plain and verify steps of the embedded model at growing batches"):
        try:
            model, bar = _model()
            st.session_state["found-12"] = steps.find_busy(model, setup.roofs, TARGET_BUSY, TARGET_K, 128, repeats=3,
                                                           progress=lambda f, words: bar.progress(f, words))
            bar.empty()
        except SpecVizError as error:
            st.error(str(error))
    if setup.here and (found := st.session_state.get("found-12")):
        plain, verify = found.plain.point(setup.roofs), found.verify.point(setup.roofs)
        st.markdown(f"**Measured** here: with **{found.plain.batch} rows** a plain step is "
                    f"**{format.percent(plain.busy_fraction)}** busy for {format.seconds(plain.seconds)}, the verify "
                    f"of 5 **{format.percent(verify.busy_fraction)}** for {format.seconds(verify.seconds)}: "
                    f"{format.number(verify.seconds / plain.seconds)} times the time for 5 times the arithmetic."
                    + ("" if found.reached else " Larger batches were not tried."))
        data = busy_idle.table([plain, verify], ["plain step", "verify of 5"])
        chart(busy_idle.figure(data), data, "busy-idle-measured", key="busy-measured")


def timed(setup: Setup) -> None:
    """Steps of the embedded model by width: measured against modelled, and the speed-up they predict."""
    st.subheader("Real steps, timed")
    if st.button("Time the embedded model", key="time-steps", icon=":material/timer:"):
        try:
            model, bar = _model()
            found = steps.measure(model, range(1, 16), [1], 128, 3, prefill=False,
                                  progress=lambda f, words: bar.progress(f, words))
            opened = STORE.open(find_pair(EMBEDDED).target, "auto", "auto")
            draft = steps.draft_model(find_pair(EMBEDDED), opened, STORE)
            found += steps.measure(draft, [0], [1], 128, 3, kind="draft", prefill=False) if draft else []
            st.session_state["timed"] = found
            bar.empty()
        except SpecVizError as error:
            st.error(str(error))
    if not (found := st.session_state.get("timed")):
        return
    target = [s for s in found if s.kind != "draft"]
    measured = {s.k + 1: s.seconds for s in target}
    data = step_charts.times_table(measured, {s.k + 1: modelled_seconds(s.cost, setup.roofs) for s in target})
    chart(step_charts.times_figure(data), data, "time-by-positions", key="times")
    worst = data.loc[data.error.abs().idxmax()]
    st.caption(f"Modelled is the slower roof alone. The largest gap is {100 * worst.error:+.0f} % at "
               f"{worst.positions:.0f} positions: launches and Python take a fixed time per pass, and kernels for few "
               "rows fall short of the streaming roof.")
    draft = next((s.seconds for s in found if s.kind == "draft"), 0.0)
    acceptance = st.slider("Chance that a draft survives", 0.0, 1.0, 0.6, 0.05, key="alpha", bind="query-params")
    ratios = {s.k: s.seconds / measured[1] for s in target}
    data = step_charts.speedup_table(range(0, 16), acceptance, draft / measured[1], ratios)
    run = stage.current()
    real = speed_up(run.rounds, run.baseline) if run is not None and run.rounds else None
    chart(step_charts.speedup_figure(data, (run.settings.k, real) if real else None), data, "speed-up", key="speed-up")


def ledger() -> None:
    """FLOPs per token of the run on the Decode page."""
    st.subheader("FLOPs go up, waiting goes down")
    trace = stage.shown_trace()
    if trace is None:
        st.info("Run something on the Decode page: its ledger appears here.")
        return
    data = run_charts.ledger_table(trace)
    chart(run_charts.ledger_figure(data), data, "flop-ledger", key="ledger")


def _model():
    """The embedded target, fetched and loaded if need be, and the progress bar that told of it."""
    bar = st.progress(0.0, "Opening the embedded model")
    source = find_pair(EMBEDDED).target
    opened = STORE.open(source, "auto", "auto", lambda p: bar.progress(preparing.fraction(p), preparing.words(p)))
    return opened.model, bar
