"""Plotly templates of all charts: SCREEN on the app's background, light or dark; EXPORT on white.

Streamlit replaces Plotly's default template by placeholder colours that only its own page can resolve, so
every figure names its template, and every trace its colour.
"""

from __future__ import annotations

import textwrap

import pandas as pd
import plotly.graph_objects as go

from specviz.views.figures import palette

FONT = "Source Sans Pro, Source Sans, Helvetica, Arial, sans-serif"
EXPORT_WIDTH, EXPORT_HEIGHT = 900, 540


def _template(ink: str, muted: str, grid: str, paper: str) -> go.layout.Template:
    axis = {
        "gridcolor": grid,
        "linecolor": muted,
        "zerolinecolor": grid,
        "tickcolor": muted,
        "ticks": "outside",
        "showline": True,
        "automargin": True,
        "title": {"font": {"color": ink, "size": 14}, "standoff": 8},
        "tickfont": {"color": muted, "size": 12},
    }
    return go.layout.Template(
        layout={
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "font": {"family": FONT, "color": ink, "size": 14},
            "title": {
                "font": {"color": ink, "size": 18},
                "x": 0,
                "xref": "container",
                "xanchor": "left",
                "pad": {"l": 24, "t": 24},
                "y": 1,
                "yref": "container",
                "yanchor": "top",
            },
            "xaxis": axis,
            "yaxis": axis,
            "colorway": list(palette.ROLES.values()),
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1,
                "xanchor": "left",
                "yanchor": "bottom",
                "traceorder": "normal",
                "font": {"color": ink},
                "bgcolor": "rgba(0,0,0,0)",
            },
            "hoverlabel": {"font": {"family": FONT, "size": 13}},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": muted, "activecolor": ink},
            "annotationdefaults": {"font": {"color": ink}},
            "margin": {"l": 16, "r": 16, "t": 40, "b": 16},
        }
    )


CLEAR = "rgba(0,0,0,0)"
SCREEN_LIGHT = _template(palette.INK_ON_LIGHT, palette.MUTED_ON_LIGHT, palette.GRID_ON_LIGHT, CLEAR)
SCREEN_DARK = _template(palette.INK_ON_DARK, palette.MUTED_ON_DARK, palette.GRID_ON_DARK, CLEAR)
EXPORT = _template(palette.INK_ON_LIGHT, palette.MUTED_ON_LIGHT, palette.GRID_ON_LIGHT, palette.PAPER_LIGHT)


def finish(figure: go.Figure, title: str, alt: str, x: str, y: str) -> go.Figure:
    """Give a figure its takeaway title, its text for those who cannot see it, and axis titles with units."""
    figure.update_layout(template=EXPORT, title_text=title, meta={"title": title, "alt": alt})
    figure.update_xaxes(title_text=x)
    figure.update_yaxes(title_text=y)
    return figure


def for_screen(figure: go.Figure, dark: bool) -> go.Figure:
    """A copy in the app's colours. The title is left out: the page writes it as text, which wraps on phones."""
    copy = go.Figure(figure)
    return copy.update_layout(template=SCREEN_DARK if dark else SCREEN_LIGHT, title_text=None)


def for_export(figure: go.Figure) -> dict:
    """A copy on white paper, of a fixed size, its title wrapped: plain data, which Plotly need not validate again (it
    takes longer than writing it)."""
    copy, lines = figure.to_dict(), textwrap.wrap(title_of(figure), 92)
    layout = copy["layout"]
    copy["layout"] = {
        **layout,
        "template": EXPORT.to_plotly_json(),
        "width": EXPORT_WIDTH,
        "height": EXPORT_HEIGHT,
        "title": {**layout.get("title", {}), "text": "<br>".join(lines)},
        "margin": {**layout.get("margin", {}), "t": 60 + 24 * len(lines), "l": 24, "r": 24, "b": 24},
    }
    return copy


def whole_numbers(figure: go.Figure, values: pd.Series) -> None:
    """Ticks of the horizontal axis at whole numbers only, however few there are."""
    figure.update_xaxes(fixedrange=True, tickformat="d", dtick=1 if len(values) <= 12 else None)


def hatch(shape: str) -> dict:
    """A pattern over a bar's own colour, so that neighbours differ without colour too; '' for none."""
    return {
        "shape": shape,
        "fillmode": "overlay",
        "fgcolor": palette.PAPER_LIGHT,
        "fgopacity": 0.6,
        "size": 7,
        "solidity": 0.2,
    }


def title_of(figure: go.Figure) -> str:
    """The takeaway title that `finish` set."""
    return (figure.layout.meta or {}).get("title", "")


def alt_of(figure: go.Figure) -> str:
    """The text alternative that `finish` set."""
    return (figure.layout.meta or {}).get("alt", "")


def numbers(column: pd.Series) -> list:
    """A column as plain Python values: Plotly then writes readable JSON instead of packed binary."""
    return column.tolist()
