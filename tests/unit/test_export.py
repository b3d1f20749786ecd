"""Exports are exact, self-contained and on white."""

import io
import json
import re
import zipfile

import pandas as pd
import plotly.graph_objects as go
import pytest

from specviz.views import export
from specviz.views.figures import palette, template


@pytest.fixture
def figure() -> go.Figure:
    chart = go.Figure().add_scatter(x=[1, 2], y=[0.1, 0.3], mode="lines", line={"color": palette.DRAFT})
    return template.finish(chart, "A <b>title</b> & more", 'It "rises"', "Round", "Time (ms)")


def test_csv_keeps_every_digit():
    data = pd.DataFrame({"seconds": [0.1 + 0.2, 1e-9], "kind": ["plain, of one row", "verify"]})
    again = pd.read_csv(io.BytesIO(export.csv(data)))
    assert again.equals(data)


def test_html_needs_no_network_and_names_what_it_shows(figure):
    page = export.html(figure, "Tokens / round").decode()
    # Plotly's own code mentions tags in its strings: look at the page around it
    tags = re.findall(r"<(?:script|link|img)\b[^>]*>", page[:500] + page[-20_000:])
    assert not [tag for tag in tags if "http" in tag]
    assert "It &quot;rises&quot;" in page
    assert "Plotly.downloadImage" in page and "{plot_id}" not in page
    assert len(page) > 3_000_000


def test_browser_draws_from_the_figure_on_white_paper(figure):
    data = json.loads(export.figure_json(figure))
    assert data["layout"]["template"]["layout"]["paper_bgcolor"] == palette.PAPER_LIGHT
    assert data["layout"]["width"] == template.EXPORT_WIDTH
    assert data["data"][0]["line"]["color"] == palette.DRAFT


def test_pack_holds_one_page_and_a_csv_per_chart(figure):
    data = pd.DataFrame({"x": [1, 2]})
    packed = export.pack({"First": (figure, data), "Second one": (figure, data)}, {"trace.json": b"{}"})
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert set(archive.namelist()) == {"charts.html", "first.csv", "second-one.csv", "trace.json", "README.txt"}
        page = archive.read("charts.html").decode()
        assert page.count("plot-first") > 0 and page.count("plot-second-one") > 0
        assert len(page) < 7_000_000, "the chart library must be in it once"


def test_file_names_are_safe():
    assert export.safe_name("Tokens / round: ../..") == "tokens-round"
    assert export.safe_name("…") == "chart"
