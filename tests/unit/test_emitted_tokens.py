"""The histogram as a chart: exactly its table, in the roles' own colours."""

import pytest

from specviz.views.figures import palette
from specviz.views.figures.emitted_tokens import emitted_figure, emitted_table

TABLE = emitted_table(["·a", "·b"], [30, 10], [0, 60], [0.3, 0.7])


def test_the_table_adds_up():
    assert list(TABLE.share) == pytest.approx([0.3, 0.7])
    assert list(TABLE.columns) == ["token", "kept_drafts", "drawn_by_target", "share", "p"]


def test_the_chart_stacks_both_parts_onto_the_marks():
    chart = emitted_figure(TABLE, "The accept rule", 0.0)
    kept, drawn, _, mark = chart.data
    assert list(kept.x) == [0.3, 0.1] and list(drawn.x) == [0.0, 0.6] and list(mark.x) == [0.3, 0.7]
    assert (kept.marker.color, drawn.marker.color, mark.marker.color) == (
        palette.ACCEPTED,
        palette.BONUS,
        palette.TARGET,
    )
    assert "100 trials" in chart.layout.meta["title"] and "·b: 0.700, p 0.700" in chart.layout.meta["alt"]


def test_nothing_drawn_yet_is_no_error():
    assert list(emitted_table(["a"], [0], [0], [1.0]).share) == [0.0]
