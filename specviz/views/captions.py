"""Captions of the player: the texts beside a round's pictures, composed from the round's values.

Input and output are the plain JSON values of specviz.views.frames. The browser draws these texts and composes no
sentence about a run; it only formats a number where it labels an axis or a bar. Added here: `texts` of a round, of
each slot and of the place past the last draft, and the `title` of each emitted token. Imports no torch.
"""

from __future__ import annotations

from specviz.format import equals, number, percent, seconds, si

STEPS = {"draft": "draft", "verify": "verify", "plain": "plain step"}
"""The passes whose time is shown, and their names on screen."""
_ORIGINS = {"draft": "accepted draft", "leftover": "bonus token from the leftover", "all_accepted": "bonus token"}
_MISSING = "–"


def add_texts(data: dict, rows: int, ceilings: bool) -> dict:
    """The round `data` of specviz.views.frames with its texts, in place.

    rows: rows of the batch; ceilings: whether the machine's peak and bandwidth were measured.
    """
    count = len(data["slots"])
    for slot in data["slots"]:
        slot["texts"] = _slot_texts(slot, data["greedy"])
    data["past"]["texts"] = _past_texts(data)
    for token in data["emitted"]:
        token["title"] = f"{token['text']}: {_ORIGINS[token['origin']]}, round {data['number']}"
    last = "past the drafts" if count else "next token"
    what = "drafted tokens and the target's probabilities" if count else "a plain step"
    data["texts"] = {
        "caption": f"Round {data['number']}: {what} (context {data['context']} tokens)",
        "headings": ["anchor", *(f"draft {i + 1}" for i in range(count)), last],
        "verify": ["verify", f"{count + 1} at once"] if count else ["plain step", "1 position"],
        "kept": ["1 token" if i == 1 else f"{i} tokens" for i in range(len(data["emitted"]) + 1)],
        "counters": _counters(data["counters"], rows),
        "draw": _draw_texts(data),
        "bonus_row": _bonus_row(data),
        "bonus_origin": _bonus_origin(data),
        "busy": _busy_texts(data, ceilings),
        "roof": _roof_texts(data, ceilings),
    }
    return data


# ------------------------------------------------------------------------------------------- one position


def _slot_texts(slot: dict, greedy: bool) -> dict:
    at, q, p = slot["slot"] + 1, f"q {equals(slot['q'])}", f"p {equals(slot['p'])}"
    sure = None if slot["confidence"] is None else f"{percent(slot['confidence'])} sure"
    drafted = f"Draft {at}: {slot['text']}, {q}"
    if greedy:
        verdict = {"accepted": "the same: accepted", "rejected": "they differ: rejected"}.get(slot["verdict"])
    else:
        verdict = {"accepted": "accepted: u is below the mark", "rejected": "rejected: u is beyond the mark"}.get(
            slot["verdict"]
        )
    return {
        "title": [f"Position {at}: draft “", slot["text"], "”"],
        "q": q,
        "p": p,
        "confidence": sure,
        "threshold": f"min(1, p/q) {equals(slot['threshold'])}",
        "test": ["Not drafted yet.", "p is not known before the verify pass.", slot["words"]],
        "verdict": verdict,
        "label": [f"Draft {at}: not drafted yet", drafted, f"{drafted}, {p}", f"{drafted}, {p}. {slot['words']}"],
        "row": [
            str(at),
            slot["text"],
            _cell(slot["q"]) + (f" ({sure})" if sure else ""),
            _cell(slot["p"]),
            _cell(slot["threshold"]),
            _cell(slot["u"]),
            slot["verdict"],
        ],
    }


def _past_texts(data: dict) -> dict:
    at, bonus = len(data["slots"]) + 1, data["bonus"]
    if data["slots"]:
        title = f"Position {at}: past the last draft"
        test = "Nothing was drafted here, so nothing is tested: q = 0, and the leftover of p is p itself."
    else:
        title, test = "The next token", "K = 0: nothing was drafted, so nothing is tested."
    label = f"Position {at}: past the last draft"
    drawn = bonus is not None and bonus["slot"] == at - 1
    return {
        "title": [title, "", ""],
        "test": test,
        "label": [label, f"Position {at}. {bonus['words']}" if drawn else label],
    }


def _cell(value: float | None) -> str:
    return _MISSING if value is None else number(value)


# ------------------------------------------------------------------------------------------- the bonus token


def _draw_texts(data: dict) -> dict:
    """Title, sentence and notes of the bonus token's draw: before it begins, and once it has."""
    bonus, drafted = data["bonus"], bool(data["slots"])
    if bonus is None:
        return {"before_title": "Bonus token", "before": "None: the text ended on an accepted draft."}
    leftover, cut = bonus["kind"] == "leftover", next(c for c in bonus["intervals"] if c["drawn"])
    others = "" if bonus["exact"] else "; “others” are kept as one sum"
    after = "Bonus token: p past the last draft" if drafted else "The draw from p"
    return {
        "before_title": "Bonus token",
        "before": (
            "Drawn by the target after the checks: from the leftover if a draft is rejected, from p if all are "
            "accepted."
        )
        if drafted
        else "Drawn by the target from p.",
        "title": "Leftover max(0, p − q), normalised" if leftover else after,
        "sum": f"sum {number(bonus['sum'])}, stretched to 1",
        "where": "all of the mass" if data["greedy"] else f"{number(cut['lo'])} to {number(cut['hi'])}",
        "note": None if data["greedy"] else f"Intervals in the order of token ids{others or ', as in the draw'}.",
    }


def _bonus_origin(data: dict) -> str | None:
    if data["bonus"] is None:
        return None
    if not data["slots"]:
        return "drawn from p"
    return "bonus, leftover" if data["bonus"]["kind"] == "leftover" else "bonus, from p"


def _bonus_row(data: dict) -> list[str] | None:
    bonus = data["bonus"]
    if bonus is None:
        return None
    place = data["slots"][bonus["slot"]] if bonus["slot"] < len(data["slots"]) else data["past"]
    drawn = next(bar for bar in place["bars"] if bar["drawn"])
    leftover = bonus["kind"] == "leftover"
    return [
        str(bonus["slot"] + 1),
        bonus["text"],
        _cell(drawn["q"]) if leftover else "",
        _cell(drawn["p"]),
        "",
        "" if data["greedy"] else _cell(bonus["u"]),
        "bonus, from the leftover" if leftover else "bonus, from p",
    ]


# ------------------------------------------------------------------------------------------- the run so far


def _counters(c: dict, rows: int) -> list[list[str]]:
    """[name, value, note] of each figure after the round."""
    passes = f"{c['rounds']} pass" if c["rounds"] == 1 else f"{c['rounds']} passes"
    plain_speed, plain_flops = c["plain_tokens_per_second"], c["plain_flops_per_token"]
    speed, flops = "plain not measured in this run", "plain not counted in this run"
    if plain_speed:
        speed = (
            f"{_times(c['tokens_per_second'], plain_speed)}: {number(plain_speed)} tokens/s in the same run (measured)"
        )
    if plain_flops:
        flops = f"{_times(c['flops_per_token'], plain_flops)}: {si(plain_flops, 'FLOP')} (counted)"
    return [
        ["Tokens per target pass", _cell(c["tokens_per_pass"]), f"{c['tokens']} tokens in {passes}, bonus included"],
        [
            "Acceptance rate",
            "none drafted" if c["acceptance_rate"] is None else percent(c["acceptance_rate"]),
            f"{c['accepted']} of {c['proposed']} drafts (counted)",
        ],
        ["Tokens per second, all rows" if rows > 1 else "Tokens per second", _cell(c["tokens_per_second"]), speed],
        ["FLOPs per token", _MISSING if c["flops_per_token"] is None else si(c["flops_per_token"], "FLOP"), flops],
    ]


def _times(value: float | None, plain: float) -> str:
    return f"{number(value / plain)}× plain" if value else ""


# ------------------------------------------------------------------------------------------- the machine


def _busy_texts(data: dict, ceilings: bool) -> dict:
    steps = {}
    for kind, name in STEPS.items():
        time, point = data["seconds"][kind], data["points"][kind]
        unused = kind == "draft" and not data["k"]
        shown = "not measured" if time is None else "none" if unused else seconds(time)
        steps[kind] = {"name": name, "time": shown, "shares": _shares(time is None or unused, point, ceilings)}
    described = []
    for kind, name in STEPS.items():
        time, point = data["seconds"][kind], data["points"][kind]
        busy = f", compute busy {percent(point['busy_fraction'])}" if point else ""
        described.append(f"{name}: {'not measured' if time is None else seconds(time)}{busy}")
    note = (
        (
            "Time measured. Upper bar: counted FLOPs at the machine's measured peak. Lower: counted bytes at its "
            "bandwidth."
        )
        if ceilings
        else "Time measured. Ceilings not measured yet, so busy shares are unknown."
    )
    return {"steps": steps, "label": "; ".join(described), "note": note}


def _shares(none: bool, point: dict | None, ceilings: bool) -> str:
    if point and point["flagged"]:
        return "faster than a measured roof allows: measure the roofs again"
    if point:
        parts = (("compute", "busy"), ("memory", "stream"), ("neither", "overhead"))
        return " · ".join(f"{name} {percent(point[f'{key}_fraction'])}" for name, key in parts)
    if none:
        return ""
    return "no counted work (a lookup)" if ceilings else "shares need measured ceilings"


def _roof_texts(data: dict, ceilings: bool) -> dict:
    if not ceilings:
        return {
            "label": "Ceilings not measured yet",
            "none": (
                "Ceilings not measured yet: without this machine's measured bandwidth and peak there is no "
                "roof to draw."
            ),
        }
    points = ((name, data["points"][kind]) for kind, name in STEPS.items())
    return {
        "none": None,
        "label": "; ".join(
            f"{name}: {number(x['intensity'])} FLOP per byte, {si(x['rate'], 'FLOP/s')}" for name, x in points if x
        ),
    }
