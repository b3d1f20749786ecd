"""Prompt lookup finds what last followed the text's ending, and hands on to another drafter where there is nothing."""

import random

import torch

from specviz.drafters.base import Proposal, Request
from specviz.drafters.lookup_first import LookupFirst
from specviz.drafters.ngram import NgramDrafter
from specviz.sampling.distributions import dense
from specviz.trace.records import Cost

CPU = torch.device("cpu")


def request(row: int, k: int = 3) -> Request:
    return Request(row, 0, k, (0.5,) * k)


def scanned(text: list[int], k: int, longest: int, shortest: int) -> list[int]:
    """What followed the latest occurrence of the longest ending, by looking at every place."""
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        for at in range(len(text) - size - 1, -1, -1):
            if text[at : at + size] == text[-size:]:
                return text[at + size : at + size + k]
    return []


def test_a_lookup_finds_what_scanning_the_text_finds():
    chance = random.Random(0)
    for trial in range(60):
        shortest, longest = chance.choice([(1, 4), (2, 4), (2, 3)])
        drafter = NgramDrafter(5, CPU, longest, shortest)
        text = [chance.randrange(5) for _ in range(chance.randrange(1, 9))]
        drafter.start(0, text, None, 100)
        for _ in range(12):
            assert drafter.propose([request(0, 4)]).tokens[0] == scanned(text, 4, longest, shortest), (trial, text)
            more = [chance.randrange(5) for _ in range(chance.randrange(1, 4))]
            drafter.commit(0, more, None)
            text += more


class Behind:
    """Drafts 7, 7, 7 and writes down who asked."""

    name, label, taps, max_k, parallel = "behind", "drafts sevens", (1,), 3, True

    def __init__(self):
        self.asked, self.calls = [], []

    def start(self, row, prompt, taps, capacity):
        self.calls.append(("start", row, taps))

    def propose(self, requests):
        self.asked.append([r.row for r in requests])
        q = torch.zeros(3, 9, dtype=torch.float64)
        q[:, 7] = 1
        return Proposal(
            [[7] * r.k for r in requests],
            [q] * len(requests),
            [q.log().float()] * len(requests),
            3 * len(requests),
            Cost(5, 6),
            confidence=[[0.5] * 3] * len(requests),
        )

    def commit(self, row, emitted, taps):
        self.calls.append(("commit", row, taps))

    def drop(self, row):
        self.calls.append(("drop", row))


def test_rows_that_repeat_themselves_copy_and_the_others_ask_behind():
    behind = Behind()
    drafter = LookupFirst(behind, 9, CPU)
    assert (drafter.name, drafter.taps, drafter.max_k) == ("lookup+behind", (1,), 3)
    drafter.start(0, [1, 2, 3, 4, 1, 2], "taps", 20)  # its ending occurred, followed by 3, 4, 1
    drafter.start(1, [1, 2, 3, 4, 5, 6], "taps", 20)
    drafter.start(2, [1, 2, 3, 4, 5, 2], "taps", 20)  # one token is not enough
    found = drafter.propose([request(r) for r in (1, 0, 2)])
    assert found.tokens == [[7, 7, 7], [3, 4, 1], [7, 7, 7]] and behind.asked == [[1, 2]]
    assert found.draft_logits[1] is None and found.draft_logits[0] is not None
    assert dense(found.draft_probs[1]).argmax(-1).tolist() == [3, 4, 1]
    assert (found.draft_tokens, found.cost, found.confidence) == (6, Cost(5, 6), None)
    assert drafter.propose([request(0)]).draft_tokens == 0 and behind.asked == [[1, 2]]
    drafter.commit(1, [1, 2], "more")  # now row 1 repeats itself
    assert drafter.propose([request(1)]).tokens == [[3, 4, 5]]
    drafter.drop(1)
    assert behind.calls[-2:] == [("commit", 1, "more"), ("drop", 1)]
