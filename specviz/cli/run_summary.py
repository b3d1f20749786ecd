"""A finished run in numbers: the JSON object of `run --json`, and one sentence."""

from __future__ import annotations

from specviz.format import number, percent, seconds
from specviz.trace import metrics
from specviz.trace.records import Trace


def as_json(trace: Trace) -> dict:
    """The object of `run --json`. With one row text and token_ids are scalars, with R rows lists of R; rates are None
    when nothing was drafted. rounds counts verify passes of the batch; rates and lengths pool the rows; the mean
    acceptance length includes the bonus token; seconds are those of decoding, without prefill."""
    rows = range(len(trace.prompts))
    texts, ids = list(trace.texts), [trace.token_ids(row) for row in rows]
    counts = metrics.counts(trace.rounds)
    return {
        "pair": trace.pair,
        "drafter": trace.drafter,
        "device": trace.machine.device,
        "dtype": trace.machine.precision,
        "prompt_tokens": len(trace.prompts[0].token_ids),
        "text": texts if len(rows) > 1 else texts[0],
        "token_ids": ids if len(rows) > 1 else ids[0],
        "rounds": counts.passes,
        "drafted": counts.proposed,
        "accepted": counts.accepted,
        "acceptance_rate": metrics.acceptance_rate(trace.rounds),
        "mean_acceptance_length": metrics.mean_acceptance_length(trace.rounds),
        "seconds": trace.seconds,
        "tokens_per_second": metrics.tokens_per_second(trace.rounds),
    }


def figures(trace: Trace) -> str:
    """Tokens, passes, acceptance and speed in one or two sentences."""
    counts = metrics.counts(trace.rounds)
    length, rate = metrics.mean_acceptance_length(trace.rounds), metrics.acceptance_rate(trace.rounds)
    text = f"{counts.emitted} tokens in {counts.passes} verify pass{'es' if counts.passes != 1 else ''}"
    if rate is None:
        text += "; nothing was drafted"
    else:
        text += (
            f": {number(length)} tokens a pass and row, bonus token included; {counts.accepted} of "
            f"{counts.proposed} drafts accepted ({percent(rate)})"
        )
    text += f". Measured: {seconds(trace.seconds)} decoding, {number(metrics.tokens_per_second(trace.rounds))} tokens/s"
    plain, faster = trace.baseline.tokens_per_second, metrics.speed_up(trace.rounds, trace.baseline)
    if plain is not None:
        text += (
            f"; plain decoding {number(plain)} tokens/s ({len(trace.baseline.seconds)} steps of the same run), "
            f"so {number(faster)} times as fast"
        )
    return f"{text}."
