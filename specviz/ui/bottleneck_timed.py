"""The timed sections of the Bottleneck page: 12 % and 58 % busy, passes by width, predicted speed-up, the ledger."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from specviz import format
from specviz.bench import step_times
from specviz.hardware import catalogue
from specviz.hardware.roofline import batch_for_busy, modelled_seconds, plain_seconds, point, step_cost
from specviz.trace.metrics import speed_up
from specviz.trace.records import MAX_K, Ceilings
from specviz.ui import stage, task
from specviz.ui.address import BOUND
from specviz.ui.bottleneck_page import decoding, models, timing_help, warn_of_spread
from specviz.ui.bottleneck_setup import Setup
from specviz.ui.chart import chart
from specviz.views.figures import busy_idle, run_charts
from specviz.views.figures import pass_times as step_charts
from specviz.worker import Job

TARGET_BUSY, TARGET_K = 0.12, 4
WIDTHS = range(1, 33)


def briefing(setup: Setup, roofs: Ceilings) -> None:
    """The batch at which a plain step is 12 % busy, and the verify of 5 beside it: modelled, everywhere, measured."""
    st.subheader("12 % and 58 %")
    pair = batch_for_busy(setup.shape, roofs, TARGET_BUSY, TARGET_K, setup.context)
    if pair is None:
        cost = step_cost(setup.shape, 1, 0, setup.context)
        first = point("plain", cost, modelled_seconds(cost, roofs), roofs)
        st.info(
            f"On these roofs no batch makes a plain step of {setup.name} about 12 % busy at a context of "
            f"{setup.context} (modelled): "
            + (
                f"one row is {format.percent(first.busy_fraction)} busy already."
                if first.busy_fraction > TARGET_BUSY
                else "each row adds its own traffic."
            )
        )
    else:
        st.markdown(
            f"**Modelled** on {setup.where}: with **{pair.batch} row{'s' if pair.batch > 1 else ''}** a plain "
            f"step keeps compute busy for **{format.percent(pair.plain.busy_fraction)}** of "
            f"{format.seconds(pair.plain.seconds)}; verifying 5 positions a row (K = 4) for "
            f"**{format.percent(pair.verify.busy_fraction)}** of {format.seconds(pair.verify.seconds)}."
        )
    st.caption(
        "The two figures assume: weights are read once per pass and that read sets the time; 5 positions do 5 "
        "times the arithmetic of 1, so 12 % becomes just under 60 %; and the batch is one at which a plain step "
        "happens to be 12 % busy. At batch 1 on a large accelerator a plain step is under 1 % busy."
    )
    if setup.here:
        _reproduction(setup, roofs)
    with st.expander("The same on every device of the catalogue (modelled on datasheet roofs)"):
        st.dataframe(everywhere(setup), hide_index=True, key="everywhere", width="stretch")


def _reproduction(setup: Setup, roofs: Ceilings) -> None:
    task.button(
        "found-12",
        "Run it on this machine",
        lambda job: _find_busy(setup, roofs, job),
        ":material/play_arrow:",
        disabled=decoding(),
        help="Times plain and verify steps at growing batches until a plain step is 12 % busy",
    )
    kept = st.session_state.get("found-12")
    if kept is None or kept[0] != (setup.name, setup.precision):
        return
    found = kept[1]
    plain, verify = found.plain.point(roofs), found.verify.point(roofs)
    warn_of_spread([found.plain, found.verify])
    rows = f"{found.plain.batch} row{'s' if found.plain.batch > 1 else ''}"
    st.markdown(
        f"**Measured** here: with **{rows}** a plain step is **{format.percent(plain.busy_fraction)}** busy "
        f"for {format.seconds(plain.seconds)}, the verify of 5 **{format.percent(verify.busy_fraction)}** for "
        f"{format.seconds(verify.seconds)}: "
        f"{format.number(verify.seconds / plain.seconds)} times the time for 5 times the arithmetic."
        + ("" if found.reached else " Larger batches were not tried.")
    )
    data = busy_idle.table([plain, verify], ["plain step", "verify of 5"])
    chart(busy_idle.figure(data), data, "busy-idle-measured", key="busy-measured")
    for p in (plain, verify):
        if p.flagged:
            st.warning(p.warning)


def _find_busy(setup: Setup, roofs: Ceilings, job: Job) -> tuple[tuple[str, str], step_times.BusySearch]:
    model, _ = models(setup, job)
    return (setup.name, setup.precision), step_times.find_busy(
        model, roofs, TARGET_BUSY, TARGET_K, 128, repeats=3, job=job
    )


def everywhere(setup: Setup) -> pd.DataFrame:
    """The batch and both fractions on each device of the catalogue, in 16 bit, modelled; the source of each row."""
    rows = []
    for device in catalogue.DEVICES:
        precision = next(p for p in ("bf16", "fp16", "fp32") if p in device.peaks)
        pair = batch_for_busy(setup.shape, device.ceilings(precision), TARGET_BUSY, TARGET_K, setup.context)
        fits = setup.shape.stored_bytes <= device.memory
        rows.append(
            (
                device.name,
                precision,
                format.si(device.bandwidth, "B/s"),
                format.si(device.peaks[precision], "FLOP/s"),
                pair and pair.batch,
                pair and format.percent(pair.plain.busy_fraction),
                pair and format.percent(pair.verify.busy_fraction),
                "yes" if fits else "no",
                device.provenance,
            )
        )
    return pd.DataFrame(
        rows,
        columns=[
            "device",
            "precision",
            "bandwidth",
            "dense peak",
            "batch",
            "plain step busy",
            "verify of 5 busy",
            "weights fit",
            "source",
        ],
    )


# ------------------------------------------------------------------------------------------ steps by width


def timed(setup: Setup, roofs: Ceilings) -> None:
    """Passes of 1 to 32 positions: measured against modelled, the error by width, and what explains it."""
    st.subheader("Modelled against measured, 1 to 32 positions")
    task.button(
        "widths",
        "Time passes of 1 to 32 positions",
        lambda job: _time_widths(setup, job),
        ":material/timer:",
        disabled=decoding(),
        help=timing_help(setup),
    )
    kept = st.session_state.get("widths")
    if kept is None or kept[0] != (setup.name, setup.precision):
        st.caption(
            "One row; the tokens are random, since the time of a pass does not depend on them. Also timed: the "
            "matrix products alone, and the same modules with tiny matrices."
        )
        return
    widths, draft = kept[1]
    warn_of_spread(widths)
    rows = [step_times.width_json(width, roofs) for width in widths]
    data = step_charts.widths_table(rows)
    left, right = st.columns(2, gap="large")
    with left:
        chart(step_charts.times_figure(data), data, "time-by-positions", key="times")
    with right:
        chart(step_charts.error_figure(data), data, "model-error-by-positions", key="errors")
    for sentence in explanations(data):
        st.caption(sentence)
    chart(step_charts.parts_figure(data), data, "where-a-pass-goes", key="parts")
    speedup(setup, {w.positions - 1: w.seconds for w in widths}, draft)


def explanations(data: pd.DataFrame) -> list[str]:
    """A sentence for each reason why the model is off by more than 25 %, with the widths that it holds for."""
    off = data[data.explanation != ""]
    if off.empty:
        return ["The model is within 25 % at every width that was timed."]
    found = []
    for reason, part in off.groupby("explanation", sort=False):
        places = _ranges(part.positions.tolist())
        low, high = 100 * part.error.min(), 100 * part.error.max()
        found.append(f"Off by {low:+.0f} to {high:+.0f} % at {places} positions: {reason}.")
    return found


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 5 as '1 to 3, 5'."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)


def _time_widths(setup: Setup, job: Job) -> tuple[tuple[str, str], tuple[list[step_times.WidthStep], float]]:
    model, draft = models(setup, job)
    widths = step_times.by_width(model, WIDTHS, 128, 3, job.part(0.0, 0.9))
    seconds = 0.0
    if draft is not None:
        part = job.part(0.9, 1.0)
        seconds = step_times.measure(draft, [0], [1], 128, 3, kind="draft", prefill=False, job=part)[0].seconds
    return (setup.name, setup.precision), (widths, seconds)


def speedup(setup: Setup, seconds: dict[int, float], draft: float) -> None:
    """E / (c_draft + T(K+1)/T(1)) from the measured curve, the ideal curve, and the measured speed-up of the run."""
    acceptance = st.slider("Probability that a draft is accepted", 0.0, 1.0, 0.6, 0.05, key="alpha", **BOUND)
    ratios = {k: s / seconds[0] for k, s in seconds.items()}
    data = step_charts.speedup_table(range(0, MAX_K + 1), acceptance, draft / seconds[0], ratios)
    run = stage.current()
    real = speed_up(run.rounds, run.baseline) if run is not None and run.rounds else None
    spot = (run.settings.k, real) if run is not None and real else None
    chart(step_charts.speedup_figure(data, spot), data, "speed-up", key="speed-up")
    st.caption(
        "Predicted: E / (c + T(K+1)/T(1)), where E = (1 - a^(K+1)) / (1 - a) tokens a round, c = K draft steps "
        f"of {format.number(draft / seconds[0])} plain steps each (its own first layers, measured) and T is the "
        "curve measured above. Ideal: a verify pass costs one plain step."
        + ("" if real else " The measured speed-up of your run on the Decode page appears here.")
    )


def ledger() -> None:
    """FLOPs and seconds per token of the run on the Decode page."""
    st.subheader("FLOPs go up: does waiting go down?")
    trace = stage.shown_trace()
    if trace is None:
        st.info("The ledger appears when the run has ended.")
        return
    run = stage.current()
    own = run is not None and trace is run.trace
    data = run_charts.ledger_table(trace)
    chart(run_charts.ledger_figure(data), data, "flop-ledger", key="ledger")
    step = plain_seconds(trace.baseline)
    st.caption(
        f"{'Your last run' if own else f'Recorded {trace.recorded_at[:10]} on {trace.machine.name}'}: "
        f"{trace.pair}, {trace.drafter}, K = {trace.settings.k}. FLOPs are counted, seconds measured"
        + (f"; a plain step took {format.seconds(step)}." if step else ".")
    )
