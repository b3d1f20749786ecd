"""The integers of a block drafter's round: two rows, without and with padding."""

from specviz.drafters.block_indices import BlockIndices, Padding


def test_the_integers_of_two_rows():
    """Row 0 in cache slot 4 with 7 tokens gets 2 more and 3 block slots; row 1 in slot 2 with 5 gets none and 1."""
    assert BlockIndices.of([4, 2], [7, 5], [2, 0], [3, 1]) == BlockIndices(
        context_slots=[4, 4],
        context_positions=[7, 8],
        slots=[4, 4, 4, 2],
        positions=[9, 10, 11, 5],
        last_seen=[11, 11, 11, 5],
        row_of=[0, 0, 0, 1],
        slot_of=[0, 1, 2, 0],
        context_ends=[1, -1],
    )


def test_padding_writes_to_the_unused_slot_and_keeps_what_the_rows_had():
    made = BlockIndices.of([4, 2], [7, 5], [2, 0], [3, 1], Padding(rows=3, context=2, slots=3, unused_slot=9))
    assert made == BlockIndices(
        context_slots=[4, 4, 9, 9, 9, 9],
        context_positions=[7, 8, 0, 0, 0, 0],
        slots=[4, 4, 4, 2, 9, 9, 9, 9, 9],
        positions=[9, 10, 11, 5, 5, 5, 0, 0, 0],
        last_seen=[11, 11, 11, 5, 5, 5, 0, 0, 0],
        row_of=[0, 0, 0, 1, 1, 1, 2, 2, 2],
        slot_of=[0, 1, 2, 0, 1, 2, 0, 1, 2],
        context_ends=[1, -1, -1],
    )
