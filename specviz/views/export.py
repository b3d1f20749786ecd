"""Export of charts: CSV of the plotted table, self-contained HTML, and a zip of all charts of a page.

SVG and PNG are rendered in the user's browser (specviz/ui/chart.py, and the buttons in the HTML itself) from the same
figure on a white background, so the server needs no browser.
"""

from __future__ import annotations

import html as markup
import io
import json
import re
import zipfile
from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
import plotly.io

from specviz.views.figures import template

_SAVE = """
for (const format of ["svg", "png"]) {
  const button = document.createElement("button");
  button.textContent = "Save as " + format.toUpperCase();
  button.onclick = () => Plotly.downloadImage("{plot_id}", {format, filename: %s, width: %d, height: %d,
                                                            scale: format === "png" ? 2 : 1});
  document.getElementById("{plot_id}").parentElement.after(button);
}
"""
_STYLE = (
    "body{font:16px/1.5 Helvetica,Arial,sans-serif;color:#1F2328;background:#fff;margin:24px;max-width:960px}"
    "button{font:inherit;margin:4px 8px 4px 0;padding:4px 12px}.plot{overflow-x:auto}"
)

_README = """charts.html opens in any browser, offline, and saves each chart as SVG or PNG.
Each CSV holds exactly what its chart draws; units are in the column names.
"""


def safe_name(text: str) -> str:
    """A portable file name: 'Tokens / round' becomes 'tokens-round'."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80] or "chart"


def csv(data: pd.DataFrame) -> bytes:
    """The table as UTF-8 CSV; numbers in full precision."""
    return data.to_csv(index=False, lineterminator="\n").encode()


def figure_json(figure: go.Figure) -> str:
    """The figure on a white background as Plotly JSON, from which the browser renders SVG and PNG."""
    return plotly.io.to_json(template.for_export(figure), validate=False)


def html(figure: go.Figure, name: str) -> bytes:
    """One chart as an offline HTML page with Plotly inside, a white background, and buttons for SVG and PNG."""
    return _page(template.title_of(figure) or name, [_section(figure, name, True)])


def pack(charts: Mapping[str, tuple[go.Figure, pd.DataFrame]], files: Mapping[str, bytes] | None = None) -> bytes:
    """A zip of a page's charts: one page with all of them, a CSV each, and `files` (name to content) beside.

    `charts` maps a name to the figure and the table that it draws.
    """
    sections = [_section(figure, name, first == 0) for first, (name, (figure, _)) in enumerate(charts.items())]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("charts.html", _page("SpecViz charts", sections))
        for name, (_, data) in charts.items():
            archive.writestr(f"{safe_name(name)}.csv", csv(data))
        for name, content in (files or {}).items():
            archive.writestr(name, content)
        archive.writestr("README.txt", _README)
    return stream.getvalue()


def _section(figure: go.Figure, name: str, with_plotly: bool) -> str:
    ready = template.for_export(figure)
    identity = f"plot-{safe_name(name)}"
    script = _SAVE % (json.dumps(safe_name(name)), template.EXPORT_WIDTH, template.EXPORT_HEIGHT)
    plot = plotly.io.to_html(
        ready,
        full_html=False,
        include_plotlyjs=with_plotly,
        div_id=identity,
        post_script=script,
        validate=False,
        config={"displaylogo": False, "displayModeBar": False},
    )
    alt = markup.escape(template.alt_of(figure))
    return f'<div class="plot" role="img" aria-label="{alt}">{plot}</div><p>{alt}</p>'


def _page(title: str, sections: list[str]) -> bytes:
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{markup.escape(title)}'
        f"</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(sections)}</body></html>'.encode()
