"""Shows a chart on a page, in the app's colours, with its numbers and its exports."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from specviz.views import export
from specviz.views.figures import template

_HTML = """
<div class="row">
  <button type="button" data-format="svg">SVG</button>
  <button type="button" data-format="png">PNG</button>
</div>
<p role="status" aria-live="polite"></p>
"""
_CSS = """
.row { display: flex; gap: 0.5rem; }
button {
  flex: 1; min-height: 2.5rem; padding: 0.25rem 0.75rem; cursor: pointer;
  font: 1rem var(--st-font); color: var(--st-text-color); background: var(--st-background-color);
  border: 1px solid var(--st-border-color); border-radius: var(--st-button-radius);
}
button:hover, button:focus-visible { border-color: var(--st-primary-color); color: var(--st-primary-color); }
button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 1px; }
p { margin: 0; font: 0.875rem var(--st-font); color: var(--st-text-color); }
p:not(:empty) { margin-top: 0.5rem; }
"""
# The page's own Plotly draws the export figure off screen: white paper, a fixed size, whatever the screen shows.
_JS = """
export default function ({ data, parentElement }) {
  const status = parentElement.querySelector("[role=status]");
  for (const button of parentElement.querySelectorAll("button")) {
    button.onclick = () => save(button.dataset.format, data, status);
  }
}

async function save(format, data, status) {
  status.textContent = "";
  if (!window.Plotly) {
    status.textContent = "This browser has not loaded the chart library: use the HTML file, which saves SVG and PNG.";
    return;
  }
  try {
    const figure = JSON.parse(data.figure);
    const size = { width: data.width, height: data.height, scale: format === "png" ? 2 : 1 };
    const url = await window.Plotly.toImage({ data: figure.data, layout: figure.layout }, { format, ...size });
    const link = document.createElement("a");
    link.href = url;
    link.download = `${data.name}.${format}`;
    link.click();
    status.textContent = `Saved ${link.download}.`;
  } catch (error) {
    status.textContent = `The browser could not draw the ${format.toUpperCase()}: ${error}. The HTML file can.`;
  }
}
"""
_save_buttons = st.components.v2.component("specviz_export", html=_HTML, css=_CSS, js=_JS)


def dark() -> bool:
    """Whether the page is shown in the dark theme."""
    return st.context.theme.type == "dark"


def chart(
    figure: go.Figure,
    data: pd.DataFrame,
    name: str,
    alt: str | None = None,
    key: str | None = None,
    picks: str | None = None,
    live: bool = False,
) -> None:
    """Show a figure under its title, with the table of its data and exports as SVG, PNG, HTML and CSV.

    name: of the files. alt: alternative text (default: the figure's own). key: unique on the page (default: from the
    name). picks: a key of the session's state that a click on a point sets to the point's custom data. live: the figure
    is redrawn often, so table and exports are left out.
    """
    key = key or export.safe_name(name)
    file = export.safe_name(name)
    with st.container(key=f"{key}-chart", gap="small"):
        if title := template.title_of(figure):
            st.markdown(f"**{plain(title)}**")
        target = picks or ""
        st.plotly_chart(
            template.for_screen(figure, dark()),
            theme=None,
            key=key,
            alt=alt or template.alt_of(figure),
            config={
                "displaylogo": False,
                "modeBarButtons": [["toImage"]],
                "toImageButtonOptions": {"format": "svg", "filename": file, "scale": 1},
            },
            on_select=(lambda: _pick(key, target)) if picks else "ignore",
            selection_mode="points",
        )
        if not live:
            _files(figure, data, name, key)


def _files(figure: go.Figure, data: pd.DataFrame, name: str, key: str) -> None:
    """The table of a chart's data, and its exports."""
    file = export.safe_name(name)
    with st.container(horizontal=True, gap="small"):
        with st.popover("Numbers", icon=":material/table:", type="tertiary"):
            st.dataframe(data, hide_index=True, key=f"{key}-table")
        with st.popover("Export", icon=":material/download:", type="tertiary"):
            _save_buttons(
                key=f"{key}-image",
                data={
                    "figure": export.figure_json(figure),
                    "name": file,
                    "width": template.EXPORT_WIDTH,
                    "height": template.EXPORT_HEIGHT,
                },
            )
            with st.container(horizontal=True):
                st.download_button(
                    "CSV",
                    export.csv(data),
                    f"{file}.csv",
                    "text/csv",
                    key=f"{key}-csv",
                    on_click="ignore",
                    help="Exactly the numbers that are drawn",
                    width="stretch",
                )
                st.download_button(
                    "HTML",
                    lambda: export.html(figure, name),
                    f"{file}.html",
                    "text/html",
                    key=f"{key}-html",
                    on_click="ignore",
                    width="stretch",
                    help="A page that works offline (about 5 MB)",
                )


def _pick(key: str, target: str) -> None:
    """Put the custom data of the clicked point into the session's state."""
    points = st.session_state[key]["selection"]["points"]
    if points and (chosen := points[0].get("customdata")):
        st.session_state[target] = chosen[0] if isinstance(chosen, list) else chosen


def plain(text: str) -> str:
    """The text with Markdown's special characters escaped."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]()#+-.!|$~:<>" else c for c in text)


__all__ = ["chart", "dark", "plain"]
