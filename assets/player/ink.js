// Colours and fonts of the drawings: on the page they follow the theme, in a saved file they are fixed.

/** Ink for the page: CSS variables, so that light and dark need no redraw. */
export function pageInk(colours) {
  return {
    ink: "var(--sv-ink)", muted: "var(--sv-muted)", grid: "var(--sv-grid)", paper: "var(--sv-paper)",
    font: "var(--sv-font)", mono: "var(--sv-mono)",
    fillLine: "color-mix(in srgb, var(--sv-ink) 60%, transparent)",
    draftLine: "color-mix(in srgb, var(--sv-draft) 70%, var(--sv-ink))",
    pitch: 0.455,  // mean width of a character in ems: Source Sans is narrow
    ...colours.roles,
  };
}

/** Ink for a file: dark on white, with no style sheet to lose. */
export function paperInk(colours) {
  return { ...colours.paper, ...colours.roles, font: "Helvetica, Arial, sans-serif",
    mono: "Menlo, Consolas, 'DejaVu Sans Mono', monospace", fillLine: colours.paper.ink, draftLine: "#8A5F00",
    pitch: 0.5 };
}
