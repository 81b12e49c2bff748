"""What a browser can tell about a page: is its text readable, does everything fit, where is the keyboard."""

from __future__ import annotations

# The text of outputs that stands out too little from its background: [text, contrast]. WCAG 2 asks for 4.5 for text
# and for 3 for signs; https://www.w3.org/TR/WCAG22/#contrast-minimum. Drawings have a background of their own.
FAINT_TEXT = """() => {
  const numbers = (css) => {
    const found = (css.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const scale = css.startsWith("color(") ? 255 : 1;
    return [found[0] * scale, found[1] * scale, found[2] * scale, found.length > 3 ? found[3] : 1];
  };
  const over = (top, below, alpha) => [0, 1, 2].map((i) => top[i] * alpha + below[i] * (1 - alpha));
  const background = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below, layer[3]), [255, 255, 255]);
  };
  const opacity = (element) => {
    let product = 1;
    for (let at = element; at && !at.matches(".jp-OutputArea"); at = at.parentElement)
      product *= Number(getComputedStyle(at).opacity);
    return product;
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll(".jp-Notebook .jp-OutputArea-output *")) {
    if (element.closest("svg, .jp-mod-hidden") || !element.getClientRects().length) continue;
    const own = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join("").trim();
    const text = own || (element.matches("select, input") ? element.value : "");
    if (!text) continue;
    const below = background(element);
    const colour = numbers(getComputedStyle(element).color);
    const seen = over(colour, below, colour[3] * opacity(element));
    const [high, low] = [luminance(seen), luminance(below)].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < (text.length === 1 ? 3 : 4.5)) found.push([text.slice(0, 60), Math.round(contrast * 100) / 100]);
  }
  return found;
}"""

# Pictures, cards and controls that reach beyond the right edge of their output: [what, pixels too many]. JupyterLab
# itself shows a stored drawing (SVG) in its full size, with a bar to scroll it.
TOO_WIDE = """() => {
  const found = [];
  for (const output of document.querySelectorAll(".jp-Notebook .jp-OutputArea-output")) {
    const edge = output.getBoundingClientRect().right;
    for (const element of output.querySelectorAll("img, svg, table, select, input, button, .noUi-base, div[style]")) {
      if (element.parentElement.closest("svg, .jp-RenderedSVG") || !element.getClientRects().length) continue;
      const beyond = element.getBoundingClientRect().right - edge;
      if (beyond > 1) found.push([element.outerHTML.slice(0, 80), Math.round(beyond)]);
    }
  }
  return found;
}"""

# Which of a cell's controls, by number, has the keyboard; -1 for none.
FOCUSED = """(controls) => controls.indexOf(document.activeElement)"""
