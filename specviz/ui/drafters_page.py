"""The Drafters page: lanes on a common clock, what each draft costs, how far drafts are accepted, how sure they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
import streamlit as st

from specviz import format
from specviz.bench import draft_cost
from specviz.bench import lanes as lane_sets
from specviz.bench.lanes import PLAIN, Key, Lanes, LanesOrder
from specviz.drafters.names import drafter_names
from specviz.engine.prompts import PRESETS, preset, presets_for
from specviz.errors import SpecVizError
from specviz.loader.pairs import EMBEDDED, find_pair, names
from specviz.trace import calibration, rejections
from specviz.trace.records import MAX_K, Settings, Trace
from specviz.ui import recorded, task
from specviz.ui.chart import chart
from specviz.ui.lanes_component import lanes as lanes_component
from specviz.ui.player_component import Seek, player
from specviz.views import export, timeline
from specviz.views.figures import drafter_charts as figures

BOUND = {"bind": "query-params"}


@dataclass(frozen=True)
class Shown:
    """The lanes on screen, and where they come from. `id` changes with them."""

    id: str
    lanes: Mapping[Key, Trace]
    recorded: bool

    @property
    def source(self) -> str:
        """Where the lanes were measured, in words."""
        first = next(iter(self.lanes.values()))
        return f"recorded {recorded.label(first)}" if self.recorded else f"measured here, {first.machine.name}"


# ------------------------------------------------------------------------------------------- running


def _use_preset() -> None:
    if chosen := st.session_state.get("lanes-preset"):
        st.session_state["lanes-prompt"] = preset(chosen).text


def _fit_prompt() -> None:
    """The toy pair speaks six words: give it a prompt that it can read, and the others theirs back."""
    wanted = [p.text for p in presets_for(st.session_state["lanes-pair"])]
    others = [p.text for name in ("toy", EMBEDDED) for p in presets_for(name) if p.text not in wanted]
    if st.session_state["lanes-prompt"] in others:
        st.session_state["lanes-prompt"] = wanted[0]


def controls() -> LanesOrder | None:
    """What to run; every control but the lanes is in the address. None, with the reason on screen, if it cannot be."""
    pair_name = st.session_state.get("lanes-pair", EMBEDDED)
    titles = {p.name: p.title for p in presets_for(pair_name)}
    st.pills(
        "Try", titles, format_func=titles.get, key="lanes-preset", on_change=_use_preset, label_visibility="collapsed"
    )
    text = st.text_area("Prompt", PRESETS[0].text, key="lanes-prompt", height=80, max_chars=20_000, **BOUND)
    first, second, third = st.columns(3)
    k = first.slider("K, draft tokens per round", 1, MAX_K, 7, key="lanes-k", **BOUND)
    temperature = second.slider(
        "Temperature",
        0.0,
        2.0,
        0.0,
        0.05,
        key="lanes-temperature",
        **BOUND,
        help="0 is greedy: every lane then writes the same text",
    )
    count = third.slider(
        "Prompts",
        1,
        lane_sets.MAX_PROMPTS,
        1,
        key="lanes-count",
        **BOUND,
        help="Yours, and after it the pair's own test prompts: more of them, steadier rates",
    )
    with st.expander("More settings: lanes, length, seed, pair"):
        first, second, third = st.columns(3)
        chosen_pair = first.selectbox("Pair", names(), key="lanes-pair", on_change=_fit_prompt, **BOUND)
        length = second.slider("Length, new tokens", 16, 128, 48, 8, key="lanes-length", **BOUND)
        seed = third.number_input("Seed", 0, 2**31, 0, key="lanes-seed", **BOUND, help="The same for every lane")
        try:
            pair = find_pair(chosen_pair)
            drafters = st.pills(
                "Lanes, beside plain decoding",
                drafter_names(pair),
                selection_mode="multi",
                default=lane_sets.default_drafters(pair.name),
                key=f"lanes-drafters-{pair.name}",
            )
            st.caption(pair.title + ". " + " ".join(pair.notes))
            order = LanesOrder(
                pair.name,
                tuple(d for d in lane_sets.default_drafters(pair.name) if d in drafters)
                + tuple(d for d in drafters if d not in lane_sets.default_drafters(pair.name)),
                (text,),
                Settings(k=k, temperature=temperature, seed=int(seed), max_new_tokens=length),
                raw=pair.name == "toy",
            )
            Lanes(order)  # says what cannot be run
        except SpecVizError as error:
            st.error(str(error))
            return None
    st.session_state["lanes-wanted"] = count
    return order


def current() -> Lanes | None:
    """The session's latest run of lanes."""
    return st.session_state.get("lanes-run")


def buttons(order: LanesOrder | None) -> None:
    """Run and Stop. Outside every fragment, so that a click interrupts."""
    run = current()
    alive = run is not None and run.alive
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Run the lanes",
            type="primary",
            icon=":material/play_arrow:",
            key="lanes-go",
            disabled=order is None,
            help="Decode with every drafter, one after the other, on this machine",
        ):
            _start(order, run)
        task.stop_button(run, "lanes-stop")
        if (
            run is not None
            and not alive
            and st.button("Show the recording again", icon=":material/history:", key="lanes-back")
        ):
            del st.session_state["lanes-run"]
            st.rerun()


def _start(order: LanesOrder, before: Lanes | None) -> None:
    if before is not None:
        before.stop()
    count = st.session_state["lanes-wanted"]
    try:
        texts = lane_sets.more_texts(order.pair, order.texts[0], count)
        st.session_state["lanes-run"] = Lanes(replace(order, texts=texts)).start()
    except SpecVizError as error:
        st.session_state["lanes-refused"] = str(error)
        return
    st.session_state.pop("lanes-refused", None)
    st.rerun()


def status() -> None:
    """How far the run is, and what went wrong if anything did."""
    run = current()
    if refused := st.session_state.get("lanes-refused"):
        st.error(refused)
    if run is None:
        return

    def done_so_far() -> None:
        if run.alive and run.traces:
            st.caption(f"{len(run.traces)} lanes are done; Stop keeps and shows them.")

    task.follow(
        run,
        f"Stopped: {len(run.traces)} finished lanes are kept." if run.traces else "Stopped before a lane was finished.",
        done_so_far,
    )


@st.cache_resource(show_spinner=False)
def _recorded() -> dict[Key, Trace]:
    return lane_sets.load()


def shown() -> Shown | None:
    """The lanes on screen: the session's own, or the recorded ones."""
    run = current()
    if run is not None and run.traces:
        found = run.traces
        return Shown(f"{run.id}-{len(found)}", found, False)
    found = _recorded()
    return Shown("recorded", found, True) if found else None


@st.cache_resource(max_entries=12, show_spinner=False)
def judged(set_id: str, _lanes: Mapping[Key, Trace]) -> pd.DataFrame:
    """`failures.judged`, once for each set of lanes."""
    return rejections.judged(_lanes)


# ------------------------------------------------------------------------------------------- the clock


def race(now: Shown) -> None:
    """The lanes of one prompt on their common clock, and below them the round that was picked, in the player."""
    st.fragment(_race)(now)


def _race(now: Shown) -> None:
    prompts = lane_sets.prompts_of(now.lanes)
    if st.session_state.get("lanes-of") not in prompts:
        st.session_state["lanes-of"] = prompts[0]
    if len(prompts) > 1:
        st.pills("Prompt of the lanes", prompts, key="lanes-of", label_visibility="collapsed", required=True)
    prompt = st.session_state["lanes-of"] or prompts[0]
    order = [PLAIN, *lane_sets.drafters_of(now.lanes)]
    named = [(d, now.lanes[prompt, d]) for d in order if (prompt, d) in now.lanes]
    picked = lanes_component(
        named, "lanes", f"{now.id}|{prompt}", "recorded" if now.recorded else "measured", _meta(now, named)
    )
    st.caption("Blocks are as long as they took, measured; tokens inside a draft block are spaced evenly, not timed.")
    rows = pd.DataFrame(timeline.table(named))
    st.download_button(
        "Blocks of time (CSV)",
        export.csv(rows),
        "specviz-lanes.csv",
        "text/csv",
        key="lanes-csv",
        on_click="ignore",
        icon=":material/download:",
        type="tertiary",
    )
    _inside(now, prompt, named, picked)


def _meta(now: Shown, named: list[tuple[str, Trace]]) -> str:
    trace = next((t for d, t in named if d != PLAIN), named[0][1])
    s = trace.settings
    return (
        f"{recorded.label(trace)} · {trace.machine.precision} · K {s.k} · temperature {s.temperature:g} · seed "
        f"{s.seed} · clock: seconds of decoding, measured"
    )


def _inside(now: Shown, prompt: str, named: list[tuple[str, Trace]], picked) -> None:
    st.markdown("##### Inside a round: how each drafter builds its K tokens")
    names_here = [d for d, _ in named if d != PLAIN] or [named[0][0]]
    if picked is not None and st.session_state.get("lanes-handled") != picked.id:
        st.session_state["lanes-handled"] = picked.id
        st.session_state["lanes-seek"] = (picked.id, picked.drafter, picked.round)
        st.session_state["lanes-drafter"] = picked.drafter
    wanted = st.session_state.get("lanes-drafter")
    options = [d for d, _ in named]
    if wanted not in options:
        st.session_state["lanes-drafter"] = "hybrid" if "hybrid" in options else names_here[-1]
    drafter = st.segmented_control("Lane", options, key="lanes-drafter", required=True, label_visibility="collapsed")
    trace = dict(named)[drafter]
    st.caption(f"{trace.drafter_label}. {_built(trace)}")
    seek = st.session_state.get("lanes-seek")
    at = Seek(seek[0], seek[2]) if seek and seek[1] == drafter else None
    player(
        trace,
        key="lanes-player",
        run_id=f"{now.id}|{prompt}|{drafter}",
        meta=recorded.facts(trace),
        seek=at,
        recorded=recorded.label(trace) if now.recorded else None,
    )


def _built(trace: Trace) -> str:
    """How this lane's rounds were built, counted in them."""
    kind = timeline.building(trace)
    rounds = [v for r in trace.rounds for v in r.rows]
    drafting = sum(v.proposed > 0 for v in rounds)
    if kind == "plain":
        return "Every pass gives one token."
    if kind == "lookup":
        return (
            f"Nothing is computed: in {drafting} of {len(rounds)} rounds the last words stood in the text before, "
            "and what followed them was proposed (counted)."
        )
    if kind == "serial":
        return "The tokens come one by one: each is forwarded before the next can be drafted, so K passes for K tokens."
    if kind == "parallel":
        return "K mask tokens, and the target's hidden states, go through one pass: all K tokens appear together."
    m = rejections.mending({("", ""): trace})
    return (
        f"One pass guesses all K tokens; then the serial head, which sees the tokens before, changed "
        f"{m['changed']} of {m['drafts']} guesses. Where the target judged: {m['mended']} wrong ones put right, "
        f"{m['spoilt']} right ones spoilt (counted)."
    )


# ------------------------------------------------------------------------------------------- charts


def speed(now: Shown) -> None:
    """Tokens per pass and per second, and acceptance by position."""
    st.markdown("#### What it makes of tokens per pass and per second")
    data = figures.speed_table(now.lanes)
    left, right = st.columns(2, gap="large")
    with left:
        chart(figures.speed_figure(data), data, "drafters-speed", key="drafters-speed")
    with right:
        st.dataframe(
            data[
                ["drafter", "tokens_per_pass", "tokens_per_second", "speedup", "draft_seconds", "verify_seconds"]
            ].assign(draft_seconds=1e3 * data.draft_seconds, verify_seconds=1e3 * data.verify_seconds),
            hide_index=True,
            key="drafters-speed-summary",
            column_config={
                "tokens_per_pass": st.column_config.NumberColumn("tokens/pass", format="%.2f"),
                "tokens_per_second": st.column_config.NumberColumn("tokens/s", format="%.1f"),
                "speedup": st.column_config.NumberColumn("times plain", format="%.2f"),
                "draft_seconds": st.column_config.NumberColumn("draft, ms", format="%.1f"),
                "verify_seconds": st.column_config.NumberColumn("verify, ms", format="%.1f"),
            },
        )
        st.caption(_speed_words(now, data))


def _speed_words(now: Shown, data: pd.DataFrame) -> str:
    words = [
        f"Tokens counted, times measured ({now.source}); per round on average. Plain decoding is a lane of the "
        "same run."
    ]
    compared = data[data.compared_texts > 0]
    if len(compared):
        same = ", ".join(f"{r.drafter} {r.equal_texts} of {r.compared_texts}" for r in compared.itertuples())
        words.append(
            f"Greedy texts equal to plain decoding's, token for token: {same}. Another kernel for another "
            "number of rows may tip a near-tie."
        )
    return " ".join(words)


def acceptance(now: Shown) -> None:
    """How acceptance decays by position, conditional and unconditional."""
    st.markdown("#### How acceptance decays by position")
    data = figures.acceptance_table(now.lanes)
    left, right = st.columns(2, gap="large")
    with left:
        chart(figures.acceptance_figure(data, "of_judged"), data, "acceptance-if-reached", key="drafters-judged")
    with right:
        chart(figures.acceptance_figure(data, "of_proposed"), data, "acceptance-of-all-rounds", key="drafters-proposed")
    st.caption(
        f"Counted ({now.source}); 95 % intervals by Wilson. Hollow marks rest on fewer than {figures.THIN} "
        "trials: little can be said there. The left chart asks only where all drafts before survived, the right "
        "one of every round."
    )


def cost() -> None:
    """What a draft costs as K grows: recorded first, measured here on request."""
    st.markdown("#### What a draft costs as K grows")
    run: draft_cost.Costs | None = st.session_state.get("cost-run")
    alive = run is not None and run.alive
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Measure here",
            icon=":material/timer:",
            key="cost-go",
            disabled=alive,
            help=("One proposal at every K from 1 to 16 and every drafter; under 30 seconds once they are loaded"),
        ):
            pair = st.session_state.get("lanes-pair", EMBEDDED)
            st.session_state["cost-run"] = draft_cost.Costs(pair, lane_sets.default_drafters(pair)).start()
            st.rerun()
        task.stop_button(run, "cost-stop")
    if run is not None:
        task.follow(
            run, "Stopped: what was measured is shown." if run.cost else "Stopped before anything was measured."
        )
    mine = run.cost if run is not None else None
    found = mine or _recorded_cost()
    if found is None:
        st.info("Not measured yet: press Measure here.")
        return
    data = figures.cost_table(found)
    chart(figures.cost_figure(data, found.plain_seconds), data, "draft-cost-by-k", key="drafters-cost")
    where = "Measured here" if mine else f"Recorded on {found.machine} ({found.device}), {found.measured_at[:10]}"
    st.caption(
        f"{where}: median seconds of one proposal for one row, {found.precision}, {found.threads} threads, "
        f"after {found.context} tokens of prompt. A plain step, the target's forward pass of one token, takes "
        f"{format.seconds(found.plain_seconds)}. A lookup takes next to none. A drafter stops at the K that it "
        "was trained for."
    )


def _recorded_cost() -> draft_cost.DraftCost | None:
    try:
        return draft_cost.load()
    except SpecVizError as error:
        st.warning(str(error))
        return None


def confidence(now: Shown) -> None:
    """The confidence of each position against what happened."""
    data = calibration.confidences(now.lanes)
    st.markdown("#### How sure it is, and how right that is")
    if data.empty:
        st.caption("Only the hybrid drafter tells a confidence with each draft, and it is not among these lanes.")
        return
    reached = data[data.judged]
    for place, (part, column, what, name) in zip(
        st.columns(2, gap="large"),
        (
            (data, "product", "All drafts up to here survive", "calibration-of-prefixes"),
            (reached, "confidence", "This draft survives, once all before it did", "calibration-of-drafts"),
        ),
    ):
        happened = part.survived.astype(float).tolist()
        said = part[column].tolist()
        table = calibration.reliability(said, happened)
        with place:
            figure = figures.reliability_figure(
                table, calibration.expected_error(said, happened), calibration.auc(said, happened), what
            )
            chart(figure, table, name, key=f"drafters-{name}")
    table = calibration.by_position(data)
    left, right = st.columns(2, gap="large")
    with left:
        chart(figures.confidence_figure(table), table, "confidence-by-position", key="drafters-confidence")
    with right:
        st.markdown(
            f"Counted over {len(data)} drafts of {', '.join(data.drafter.unique())} ({now.source}).\n\n"
            "- **All drafts up to here survive**: the product of the confidences up to a position, against whether the "
            "whole chain survived to it. A scheduler of verify lengths relies on it.\n"
            "- **This draft survives**: each confidence by itself, only where the target came to judge it.\n"
            "- **ECE**: the mean distance from the diagonal, weighted by counts. **AUC**: the chance that a draft that "
            "survived had the higher confidence than one that did not.\n\n"
            "Each draft's own confidence stands beside it in the player."
        )
