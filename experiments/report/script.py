"""What a page does by itself: sort tables, tell values under the pointer, hide lines, turn dark; no library, no network.

Everything is there without it: a table in its printed order, figures with their titles, the system's light or dark.
"""

import base64
import hashlib

__all__ = ["POLICY", "SCRIPT"]

SCRIPT = r"""
(() => {
"use strict";
const root = document.documentElement;
const all = (where, what) => [...where.querySelectorAll(what)];
const dark = matchMedia("(prefers-color-scheme: dark)");
const stored = (value) => {  // a browser may refuse to keep anything for a file
  try { if (value) localStorage.setItem("lbdrop-theme", value); return localStorage.getItem("lbdrop-theme"); }
  catch { return null; }
};
if (["light", "dark"].includes(stored())) root.dataset.theme = stored();

function theme() {
  const button = document.createElement("button");
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const say = () => {
    const other = now() === "dark" ? "light" : "dark";
    button.textContent = other === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", `Show the page ${other}`);
  };
  button.type = "button";
  button.className = "theme";
  button.addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    stored(root.dataset.theme);
    say();
  });
  dark.addEventListener("change", say);
  say();
  document.querySelector("header").append(button);
}

function wrapped(element) {  // what is in it becomes a button
  const button = document.createElement("button");
  button.type = "button";
  button.append(...element.childNodes);
  element.append(button);
  return button;
}

function sortable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], printed = [...body.rows];
  const value = (row, column) => {
    const cell = row.cells[column], text = cell.textContent.trim();
    return cell.dataset.value !== undefined ? Number(cell.dataset.value) : text === "–" || !text ? null : text;
  };
  heads.forEach((head, column) => wrapped(head).addEventListener("click", () => {
    const before = head.getAttribute("aria-sort");
    const turn = before === "ascending" ? "descending" : before === "descending" ? null : "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    if (turn) head.setAttribute("aria-sort", turn);
    const sign = turn === "descending" ? -1 : 1;
    const rows = turn === null ? printed : printed.map((row) => [value(row, column), row]).sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);  // what is missing stays below
      if (typeof a === "number" && typeof b === "number") return sign * (a - b);
      return sign * String(a).localeCompare(String(b), "en", {numeric: true});
    }).map(([, row]) => row);
    body.append(...rows);
  }));
}

const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("role", "status");
tip.hidden = true;

function marks(svg) {  // where values are, in the units of the drawing
  const found = [];
  for (const title of all(svg, "title")) {
    const mark = title.parentNode, text = title.textContent, series = mark.dataset.series;
    const of = (...names) => names.map((name) => Number(mark.getAttribute(name)));
    const [x, y, wide, tall] = mark.tagName === "rect" ? of("x", "y", "width", "height") : [...of("cx", "cy"), 0, 0];
    const flat = mark.classList.contains("flat");  // a bar that lies on its side is found by its height
    found.push({mark, text, series, flat, x: x + (flat ? wide : wide / 2), y: y + (flat ? tall / 2 : 0),
      half: (flat ? tall : wide) / 2});
    title.remove();  // or the browser's own would show as well
  }
  for (const line of all(svg, "polyline[data-values]")) {
    const places = line.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number));
    line.dataset.values.split(" ").forEach((pair, i) => {
      const [x, y] = pair.split("|");
      found.push({mark: line, text: `${line.dataset.label}: ${y} at ${x}`, series: line.dataset.series,
        x: places[i][0], y: places[i][1], half: 0});
    });
  }
  return found;
}

function figure(svg) {
  const found = marks(svg);
  if (!found.length) return;
  const cursor = document.createElementNS(svg.namespaceURI, "circle");
  let at = -1;
  cursor.setAttribute("r", 5.5);
  cursor.setAttribute("class", "cursor off");
  svg.append(cursor);
  svg.tabIndex = 0;
  const seen = () => found.filter(({mark}) => !mark.closest(".off"));
  const hide = () => {
    at = -1;
    tip.hidden = true;
    cursor.classList.add("off");
    svg.classList.remove("focus");
  };
  const show = (point) => {
    at = found.indexOf(point);
    cursor.setAttribute("cx", point.x);
    cursor.setAttribute("cy", point.y);
    cursor.classList.toggle("off", point.half > 0);
    svg.classList.toggle("focus", point.series !== undefined);
    for (const mark of all(svg, "[data-series]")) mark.classList.toggle("hot", mark.dataset.series === point.series);
    tip.textContent = point.text;
    tip.hidden = false;
    const place = new DOMPoint(point.x, point.y).matrixTransform(svg.getScreenCTM());
    const edge = root.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(place.x + 12, edge)) + scrollX}px`;
    tip.style.top = `${place.y - tip.offsetHeight - 10 + scrollY}px`;
  };
  svg.addEventListener("pointermove", (event) => {
    const here = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const far = ({x, y, half, flat}) => half ? Math.max(0, Math.abs(flat ? y - here.y : x - here.x) - half) * 9
      : Math.hypot(x - here.x, y - here.y);
    const near = seen().reduce((best, each) => !best || far(each) < far(best) ? each : best, null);
    if (near && far(near) < 30) show(near); else hide();
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    const left = seen();
    const next = left.indexOf(found[at]) + step;
    if (left.length) show(left[at < 0 ? 0 : (next + left.length) % left.length]);
  });
}

function legend(list) {
  const section = list.closest("section");
  for (const item of all(list, "li[data-series]")) {
    const button = wrapped(item);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const off = button.getAttribute("aria-pressed") === "true";
      const same = (other) => other.dataset.series === item.dataset.series;
      for (const mark of all(section, "svg [data-series]").filter(same)) mark.classList.toggle("off", off);
      for (const other of all(section, ".legend li").filter(same))
        other.firstElementChild.setAttribute("aria-pressed", String(!off));
    });
  }
}

addEventListener("DOMContentLoaded", () => {
  document.body.append(tip);
  theme();
  all(document, "table.sortable").forEach(sortable);
  all(document, ".legend").forEach(legend);
  all(document, "figure > svg").forEach(figure);
});
addEventListener("beforeprint", () => all(document, "details").forEach((each) => { each.open = true; }));
})();
"""

_DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{_DIGEST}'"
"""Nothing is loaded, and no other script than this one runs."""
