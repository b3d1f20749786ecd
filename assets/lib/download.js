// Files made in the browser, offered as downloads.

/** Saves a blob under a file name. */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Saves the text of an SVG document. */
export function downloadSvg(text, name) {
  download(new Blob([text], { type: "image/svg+xml" }), name);
}
