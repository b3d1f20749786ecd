"""The first sections of the Bottleneck page: ceilings, the roofline with its points, busy and idle time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from specviz import format
from specviz.bench import step_times
from specviz.hardware import ceilings
from specviz.hardware.costs import breakdown
from specviz.hardware.roofline import modelled_seconds, point, round_points
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.trace.records import MAX_K, Ceilings
from specviz.ui import point_arithmetic, stage, task
from specviz.ui.bottleneck_setup import Setup
from specviz.ui.chart import chart
from specviz.ui.point_arithmetic import Entry
from specviz.views.figures import busy_idle, roofline_chart
from specviz.worker import Job

if TYPE_CHECKING:
    from specviz.hardware.costs import ModelShape
    from specviz.models.causal import CausalModel

LIVE_SECONDS = 2.0
"""Between two drawings of the roofline while a run decodes."""


def decoding() -> bool:
    """True while a run of this session decodes: measuring at the same time would disturb both."""
    run = stage.current()
    return run is not None and run.alive


def measure_ceilings(setup: Setup) -> None:
    """The roofs of this machine, and the button that measures them."""
    if setup.roofs is not None:
        first, second, third = st.columns(3)
        for place, label, value, spread, unit in (
            (first, "Streaming read (measured)", setup.roofs.bandwidth, setup.roofs.bandwidth_spread, "B/s"),
            (second, "Matrix product (measured)", setup.roofs.flops, setup.roofs.flops_spread, "FLOP/s"),
        ):
            place.metric(label, format.si(value, unit))
            place.caption(f"Repetitions from {format.si(spread[0], unit)} to {format.si(spread[1], unit)}")
        third.metric("Ridge (from both)", f"{format.number(setup.roofs.ridge)} FLOP/byte")
        others = ceilings.other_load(setup.roofs)
        third.caption(
            f"Measured {setup.roofs.measured_at.replace('T', ' ')[:16]} UTC in {setup.precision}"
            + ("" if others is None else f"; other programs used {format.percent(others)} of the device")
        )
        if warning := ceilings.steady_warning(setup.roofs):
            st.warning(warning)
    else:
        st.info(f"The ceilings of this machine in {setup.precision} are not measured yet. It takes about 10 seconds.")
    task.button(
        "ceilings",
        "Measure the ceilings" if setup.roofs is None else "Measure again",
        lambda job: ceilings.measure(setup.torch_device, setup.precision, job=job),
        ":material/speed:",
        primary=setup.roofs is None,
        disabled=decoding(),
        help="Wait for the run to end" if decoding() else "Streaming bandwidth and matrix throughput",
        keep=lambda result: None,
    )


# ------------------------------------------------------------------------------------------ the roofline


def roofline(setup: Setup, roofs: Ceilings) -> None:
    """The roofline with every step as a point, one of them opened, and the busy strip."""
    needed = setup.shape.stored_bytes + setup.batch * setup.context * setup.shape.cache_bytes_per_token
    if needed > setup.memory:
        st.warning(
            f"{setup.name} with this batch and context needs {format.si(needed, 'B')}, and {setup.where} "
            f"has {format.si(setup.memory, 'B')}{' free' if setup.here else ''}: it does not fit. The modelled "
            "figures are as if it did."
        )
    live = setup.here and decoding()
    st.fragment(_roofline, run_every=LIVE_SECONDS if live else None)(setup, roofs, live)
    if setup.here:
        task.button(
            "steps",
            "Time these steps here",
            lambda job: _time_steps(setup, job),
            ":material/timer:",
            disabled=decoding(),
            help=timing_help(setup),
        )
        if (kept := st.session_state.get("steps")) and kept[0] == (setup.name, setup.precision):
            warn_of_spread([step for step, _ in kept[1]])
    strip(setup, roofs)


def warn_of_spread(timed: Sequence[step_times.Step | step_times.WidthStep]) -> None:
    """A warning where the repetitions of timed steps differ so much that other work disturbed them."""
    if warning := step_times.spread_warning(timed):
        st.warning(warning)


def _roofline(setup: Setup, roofs: Ceilings, was_live: bool) -> None:
    entries = modelled(setup, roofs) + measured(setup, roofs) + run_entries(setup, roofs)
    run = stage.current()
    if was_live and run is not None:
        run.poll()
        if not run.alive:
            st.rerun()
    names = {entry.name for entry in entries}
    headline = _named("verify", setup.k, "measured")
    headline = headline if headline in names else _named("verify", setup.k, "modelled")
    data = roofline_chart.table(
        [e.point for e in entries],
        roofs,
        [e.label for e in entries],
        [e.name for e in entries],
        [e.source for e in entries],
    )
    figure = roofline_chart.figure(data, roofs, setup.where, _before(setup, data), headline)
    chart(figure, data, "roofline", key="roofline", picks=point_arithmetic.PICKED, live=was_live)
    st.caption(
        f"{setup.name}, {setup.batch} row{'s' if setup.batch > 1 else ''}, {setup.context} tokens cached. "
        "Open symbols are modelled: the time that the slower roof allows. Filled ones are measured here. A dot "
        "inside marks the run of the Decode page. Faint symbols show the setting before this. The axes stay the same "
        "while sliders move; the vertical one changes with the device, as throughputs differ by a factor of 10,000."
    )
    point_arithmetic.show(entries, roofs, headline)


def _named(kind: str, k: int, source: str) -> str:
    return f"{kind}{f', K = {k}' if kind == 'verify' else ''} ({source})"


def modelled(setup: Setup, roofs: Ceilings) -> list[Entry]:
    """Plain, verify at each K, draft and prefill as the roofs allow them."""
    found = []
    for kind, k, shape, new, logits in [
        ("plain", 0, setup.shape, 1, 1),
        *(("verify", k, setup.shape, k + 1, k + 1) for k in range(1, MAX_K + 1)),
        ("draft", 0, setup.draft, 1, 1),
        ("prefill", 0, setup.shape, setup.context, 0),
    ]:
        if new == 0:
            continue
        contexts = [0 if kind == "prefill" else setup.context] * setup.batch
        parts = breakdown(shape, [new] * setup.batch, contexts, logits * setup.batch)
        spot = point(kind, parts.cost, modelled_seconds(parts.cost, roofs), roofs)
        label = f"K = {k}" if k in (setup.k, MAX_K) else kind if kind in ("plain", "prefill") else ""
        found.append(Entry(_named(kind, k, "modelled"), spot, "modelled", label, parts))
    return found


def measured(setup: Setup, roofs: Ceilings) -> list[Entry]:
    """What was timed here for this model in this precision, if anything was."""
    kept = st.session_state.get("steps")
    if not setup.here or kept is None or kept[0] != (setup.name, setup.precision):
        return []
    found = []
    for step, shape in kept[1]:
        new = step.context if step.kind == "prefill" else step.k + 1
        parts = breakdown(
            shape,
            [new] * step.batch,
            [0 if step.kind == "prefill" else step.context] * step.batch,
            0 if step.kind == "prefill" else step.batch * new,
        )
        label = f"K = {step.k}" if step.kind == "verify" and step.k == setup.k else ""
        found.append(Entry(_named(step.kind, step.k, "measured"), step.point(roofs), "measured", label, parts))
    return found


def run_entries(setup: Setup, roofs: Ceilings) -> list[Entry]:
    """The latest round of the session's run, if it ran in this precision on this machine."""
    run = stage.current()
    if not setup.here or run is None or not run.rounds or run.machine is None:
        return []
    if (run.machine.device, run.machine.precision) != (setup.torch_device, setup.precision):
        return []
    points = round_points(run.rounds[-1], run.baseline, roofs)
    return [
        Entry(f"{kind} (round {len(run.rounds)} of the last run)", p, "run", "run" if kind == "verify" else "")
        for kind, p in points.items()
    ]


def _before(setup: Setup, data: pd.DataFrame) -> pd.DataFrame | None:
    """The modelled points of the setting before this one on the same device, to be drawn faintly."""
    now = (setup.device, setup.precision, setup.name, setup.batch, setup.k, setup.context)
    points = data[data.name.isin([_named("plain", 0, "modelled"), _named("verify", setup.k, "modelled")])]
    shown = st.session_state.get("roofline-shown")
    if shown is not None and shown[0] != now:
        st.session_state["roofline-before"] = shown
    st.session_state["roofline-shown"] = (now, points)
    before = st.session_state.get("roofline-before")
    return before[1] if before is not None and before[0][:2] == now[:2] and before[0] != now else None


def timing_help(setup: Setup) -> str:
    """Whose steps a button times."""
    return (
        "Times the embedded weights"
        if setup.embedded
        else "Times a model of this shape with random weights: the time of a pass does not depend on their values"
    )


def _time_steps(setup: Setup, job: Job) -> tuple[tuple[str, str], list[tuple[step_times.Step, ModelShape]]]:
    """Time plain, verify (K up to 8 and the chosen one), prefill and draft steps; each with the shape of its model."""
    model, draft = models(setup, job)
    ks = sorted({*range(1, 9), setup.k})
    found = step_times.measure(model, ks, [setup.batch], setup.context, 3, job=job.part(0.0, 0.85))
    timed = [(step, model.shape) for step in found]
    if draft is not None:
        timed += [
            (step, draft.shape)
            for step in step_times.measure(
                draft,
                [0],
                [setup.batch],
                setup.context,
                3,
                kind="draft",
                prefill=False,
                job=job.part(0.85, 1.0, "Draft steps"),
            )
        ]
    return (setup.name, setup.precision), timed


def models(setup: Setup, job: Job) -> tuple[CausalModel, CausalModel | None]:
    """The model to time, and its first layers as its drafter."""
    from specviz.engine.model_store import STORE
    from specviz.models import random_weights

    if setup.embedded:
        pair = find_pair(EMBEDDED)
        opened = STORE.open(pair.target, setup.torch_device, setup.precision, job)
        return opened.model, step_times.draft_model(pair, opened, STORE)
    model = random_weights.build(setup.config, setup.torch_device, setup.precision, setup.name, job)
    return model, model.first(max(1, model.layers // 5)) if model.layers > 1 else None


def strip(setup: Setup, roofs: Ceilings) -> None:
    """Busy and idle, drawn to time: a plain step and the verify step, measured where they were timed."""
    found = {e.name: e for e in measured(setup, roofs) + modelled(setup, roofs)}
    source = "measured" if _named("verify", setup.k, "measured") in found else "modelled"
    pair = [found[_named(kind, k, source)].point for kind, k in (("plain", 0), ("verify", setup.k))]
    data = busy_idle.table(pair, ["plain step", f"verify of {setup.k + 1}"])
    chart(busy_idle.figure(data), data, "busy-idle", key="busy")
    st.caption(
        "Measured on this machine. Time that neither lane explains is idle in both."
        if source == "measured"
        else "Modelled: traffic and arithmetic overlap fully, so the lane that binds is full by assumption. Measured "
        "steps also show time that neither roof explains."
    )
