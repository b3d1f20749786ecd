// Text that must fit: width in character cells, cutting and wrapping.

/** Width of a text in character cells: wide scripts and pictographs take two. */
export function cells(text) {
  let n = 0;
  for (const char of text) n += char.codePointAt(0) > 0x1100 && !/[\u2000-\u2BFF]/.test(char) ? 2 : 1;
  return n;
}

/** The text, cut with an ellipsis where it is wider than `room` cells. */
export function fit(text, room) {
  if (cells(text) <= room) return text;
  let out = "";
  for (const char of text) {
    if (cells(out + char) > room - 1) break;
    out += char;
  }
  return `${out}…`;
}

/** The words of a text as lines of at most `room` cells each. */
export function wrap(text, room) {
  const lines = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line && cells(`${line} ${word}`) > room) {
      lines.push(line);
      line = word;
    } else line = line ? `${line} ${word}` : word;
  }
  return line ? [...lines, line] : lines;
}
