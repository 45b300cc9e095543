"""How the report looks, and what it does in a browser; without JavaScript it is whole, too."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Final

STYLE: Final = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;font-size:13px;margin:.6em 0;display:block;overflow-x:auto}
td,th{padding:.15em .55em;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}
td:first-child{min-width:9em}
td{max-width:22em;overflow-wrap:anywhere}
td[data-value]{white-space:nowrap}
th[tabindex]{cursor:pointer}
th[aria-sort=ascending]::after{content:" \\2191"}
th[aria-sort=descending]::after{content:" \\2193"}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em 1em}
dt{color:#888}dd{margin:0;overflow-wrap:anywhere}
figure{margin:0;overflow-x:auto}
svg{width:100%;height:auto;font:12px system-ui,sans-serif;fill:currentColor}
svg svg{width:auto}
.zooms{cursor:crosshair;touch-action:pan-y}
.grid{stroke:#8885;fill:none}
.curve{fill:none;stroke-width:1.8;vector-effect:non-scaling-stroke}
.mark{vector-effect:non-scaling-stroke;stroke-width:2}
.choice{fill:#4477aa44}
.verdict{font-size:18px}.good{color:#284}.bad{color:#c33;font-weight:bold}.note{color:#888}
@media(prefers-color-scheme:dark){.good{color:#6c8}.bad{color:#f77}}
"""

SCRIPT: Final = """
"use strict";

// A click on a heading sorts a table; the field above it leaves out rows.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
      : typeof a === typeof b ? a.localeCompare(b, "en", {numeric: true})
      : typeof a === "number" ? 1 : -1;  // there is no value
  heads.forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => compare(value(a, column), value(b, column)) * (down ? -1 : 1));
      body.append(...rows);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
  if (rows.length < 8) continue;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = `filter ${rows.length} rows`;
  field.setAttribute("aria-label", "rows that contain");
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  table.before(field);
}

// Dragging over a plot shows that time only, in all plots of the place; a double click all of it.
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5,
  6e5, 12e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, content) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (content !== undefined) made.textContent = content;
  return made;
}

function show(plot, from, to) {
  const data = plot.querySelector(".data"), ticks = plot.querySelector(".ticks");
  const {begin, end, foot, top} = plot.dataset;
  const left = Number(data.getAttribute("x")), wide = Number(data.getAttribute("width"));
  const length = end - begin;
  data.setAttribute("viewBox", [left + (from - begin) / length * wide, 0,
    (to - from) / length * wide, data.getAttribute("height")].join(" "));
  const step = STEPS.find(each => (to - from) / each <= 6) ?? STEPS.at(-1);
  ticks.replaceChildren();
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const x = left + (at - from) / (to - from) * wide;
    const label = new Date(at).toISOString().slice(11, step < 1000 ? 23 : 19);
    ticks.append(element("path", {class: "grid", d: `M${x} ${top}V${foot}`}));
    ticks.append(element("text", {x, y: Number(foot) + 19, "text-anchor": "middle"}, label));
  }
  Object.assign(plot.dataset, {from, to});
}

for (const plot of document.querySelectorAll("svg.zooms")) {
  const data = plot.querySelector(".data");
  const left = Number(data.getAttribute("x")), wide = Number(data.getAttribute("width"));
  const same = () => [...document.querySelectorAll("svg.zooms")]
    .filter(other => other.dataset.place === plot.dataset.place);
  const share = event => {
    const point = new DOMPoint(event.clientX, event.clientY);
    const x = point.matrixTransform(plot.getScreenCTM().inverse()).x;
    return Math.min(Math.max((x - left) / wide, 0), 1);
  };
  let start = null, choice = null;
  plot.addEventListener("pointerdown", event => {
    if (event.button !== 0) return;
    start = share(event);
    plot.setPointerCapture(event.pointerId);
    choice = element("rect", {class: "choice", y: plot.dataset.top, width: 0,
      height: plot.dataset.foot - plot.dataset.top});
    plot.append(choice);
  });
  plot.addEventListener("pointermove", event => {
    if (start === null) return;
    const now = share(event);
    choice.setAttribute("x", left + Math.min(start, now) * wide);
    choice.setAttribute("width", Math.abs(now - start) * wide);
  });
  const finish = event => {
    if (start === null) return;
    const [low, high] = [start, share(event)].sort((a, b) => a - b);
    choice.remove();
    start = choice = null;
    const from = Number(plot.dataset.from ?? plot.dataset.begin);
    const length = Number(plot.dataset.to ?? plot.dataset.end) - from;
    if (event.type === "pointercancel" || (high - low) * wide < 4 || length * (high - low) < 2)
      return;
    for (const other of same()) show(other, from + low * length, from + high * length);
  };
  plot.addEventListener("pointerup", finish);
  plot.addEventListener("pointercancel", finish);
  plot.addEventListener("dblclick", () => {
    for (const other of same())
      show(other, Number(other.dataset.begin), Number(other.dataset.end));
  });
}
"""

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; "
    f"script-src 'sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}'"
)
"""The browser runs this script and no other, whatever names the logs have, and fetches nothing."""
