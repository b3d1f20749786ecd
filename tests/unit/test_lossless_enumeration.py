"""Exact proof, by enumeration on the toy pair, that speculative output follows the target's own law.

Every draft, every verdict and every bonus draw is enumerated; the measure of each outcome is found by
probing the production functions `judge`, `accepts` and `draw` as functions of their uniforms (each is a
step function), so that what is proved is that very code. Negative controls must be caught by the same test.
"""

import functools
import itertools
from collections import defaultdict

import pytest
import torch
from transformers import AutoModelForCausalLM

from specviz.loader.toy import FOLDER
from specviz.sampling.rejection import Judgement, accepts, draw, judge, leftover, warp

V = 6
PROMPT = (0, 1)
TOKENS = 4
"""Law of the first four tokens: the first round drafts three, and every shorter round occurs too."""


@functools.cache
def table(name: str) -> dict[tuple[int, ...], torch.Tensor]:
    """The logits [V] after the prompt and after each text of up to TOKENS tokens."""
    texts = list(itertools.product(range(V), repeat=TOKENS))
    with torch.inference_mode():
        out = AutoModelForCausalLM.from_pretrained(FOLDER / name)(torch.tensor([PROMPT + t for t in texts])).logits
    return {PROMPT + t[:n]: out[i, len(PROMPT) + n - 1] for i, t in enumerate(texts) for n in range(TOKENS + 1)}


def logits(name: str, prefix: tuple[int, ...]) -> torch.Tensor:
    return table(name)[prefix]


class Setup:
    """How p, q and the drawn draft come about. `proposes`: what drafts are drawn from; `says`: the q that is judged."""

    def __init__(self, temperature=1.0, top_k=0, top_p=1.0, proposes="q", says="q", judge=judge):
        self.warp = functools.partial(warp, temperature=temperature, top_k=top_k, top_p=top_p)
        self.proposes, self.says, self.judge = proposes, says, judge

    def p(self, prefix):
        return self.warp(logits("target", prefix))

    def q(self, prefix, kind):
        raw = logits("draft", prefix)
        if kind == "argmax":
            return warp(raw, 0)
        if kind == "reduced":
            raw = raw.masked_fill(torch.tensor([False, True, False, False, True, True]), -torch.inf)
        return self.warp(raw)


def measure(step, guesses) -> dict:
    """The lengths of the pieces of [0, 1) on which a step function is constant. `guesses`: where steps are
    expected, so that few probes are needed; a step elsewhere is found by bisection all the same."""
    points = sorted({0.0, 1 - 2**-53, *(x for g in guesses for x in (g - 1e-14, g + 1e-14) if 0 < x < 1)})
    sizes = defaultdict(float)

    def split(low, high, at_low, at_high):
        if at_low == at_high:
            sizes[at_low] += high - low
        elif high - low < 1e-13:
            sizes[at_low] += (high - low) / 2
            sizes[at_high] += (high - low) / 2
        else:
            middle = (low + high) / 2
            at_middle = step(middle)
            split(low, middle, at_low, at_middle)
            split(middle, high, at_middle, at_high)

    values = [step(x) for x in points]
    for a, b, x, y in zip(points, points[1:], values, values[1:]):
        split(a, b, x, y)
    return sizes


def round_law(setup: Setup, prefix: tuple[int, ...], k: int) -> dict[tuple[int, ...], float]:
    """Law of the tokens that one round emits."""
    law = defaultdict(float)
    for draft in itertools.product(range(V), repeat=k):
        proposed = [setup.q(prefix + draft[:i], setup.proposes) for i in range(k)]
        chance = 1.0
        for q, token in zip(proposed, draft):
            chance *= float(q[token])
        if chance == 0:
            continue
        target_probs = torch.stack([setup.p(prefix + draft[:i]) for i in range(k + 1)])
        said = [setup.q(prefix + draft[:i], setup.says) for i in range(k)]
        draft_probs = torch.stack(said) if k else torch.empty(0, V, dtype=torch.float64)
        us = []
        for slot in range(k + 1):
            # the measure of being rejected at this slot, and of being accepted, all before being accepted
            if slot < k:
                p, q = float(target_probs[slot, draft[slot]]), float(draft_probs[slot, draft[slot]])
                yes = measure(lambda u, p=p, q=q: accepts(p, q, u), [p / q])[True]
                stop, on = chance * (1 - yes), chance * yes
                here = [*us, (1 + yes) / 2, *[0.5] * (k - slot - 1)]
                expected = leftover(target_probs[slot], draft_probs[slot])
            else:
                stop, on, here, yes = chance, 0.0, us, 1.0
                expected = target_probs[k]
            if stop > 1e-15:
                step = functools.partial(setup.judge, target_probs, draft_probs, draft, here)
                outcomes = measure(step, expected.cumsum(0).tolist())
                for verdict, size in outcomes.items():
                    law[(*draft[: verdict.accepted], verdict.bonus_token)] += stop * size
            chance = on
            us = [*us, yes / 2]
            if chance == 0:
                break
    return law


def speculative_law(setup: Setup, k: int) -> dict[tuple[int, ...], float]:
    """Law of the first TOKENS tokens over as many rounds as they take."""
    done = defaultdict(float)
    states = {(): 1.0}
    while states:
        text = min(states, key=len)
        chance = states.pop(text)
        for emitted, size in round_law(setup, PROMPT + text, min(k, TOKENS - len(text) - 1)).items():
            longer = text + emitted
            if len(longer) == TOKENS:
                done[longer] += chance * size
            else:
                states[longer] = states.get(longer, 0.0) + chance * size
    return done


def plain_law(setup: Setup) -> dict[tuple[int, ...], float]:
    """The target's own law, by the chain rule."""
    law = {}
    for text in itertools.product(range(V), repeat=TOKENS):
        chance = 1.0
        for i, token in enumerate(text):
            chance *= float(setup.p(PROMPT + text[:i])[token])
        law[text] = chance
    return law


def distance(setup: Setup, k: int) -> float:
    """The largest difference in probability of any text."""
    spoken, plain = speculative_law(setup, k), plain_law(setup)
    return max(abs(spoken.get(text, 0.0) - plain[text]) for text in plain)


LOSSLESS = {
    "greedy": Setup(temperature=0),
    "temperature 1": Setup(),
    "temperature 0.7, top-k 3": Setup(temperature=0.7, top_k=3),
    "temperature 1.3, top-p 0.8": Setup(temperature=1.3, top_p=0.8),
    "one-hot q: argmax drafts judged as such": Setup(proposes="argmax", says="argmax"),
    "q on a reduced vocabulary": Setup(proposes="reduced", says="reduced"),
}


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("name", LOSSLESS)
def test_speculative_law_is_the_targets_own(name, k):
    assert distance(LOSSLESS[name], k) < 1e-12


def resample_from_p(target_probs, draft_probs, draft, us, u):
    verdict = judge(target_probs, draft_probs, draft, us, u)
    return Judgement(verdict.accepted, draw(target_probs[verdict.accepted], u), verdict.kind)


def off_by_one_p(target_probs, draft_probs, draft, us, u):
    return judge(target_probs.roll(-1, 0), draft_probs, draft, us, u)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, setup",
    [
        ("the correction drawn from p instead of the leftover", Setup(judge=resample_from_p)),
        ("argmax drafts judged by softmax q", Setup(proposes="argmax", says="q")),
        ("p read one position off", Setup(judge=off_by_one_p)),
    ],
)
def test_wrong_rules_are_caught(name, setup):
    """The same measure that is under 1e-12 above is far over it for rules that are known to be wrong."""
    assert distance(setup, 2) > 1e-3, name
