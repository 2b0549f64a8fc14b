// The moving parts of a report: curves that zoom and answer to the pointer, and the heat map of ranks. Everything that is
// words stands in the page already; text enters the page through textContent alone, so that a hostile name stays a name.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8, DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const HEIGHT = 260, LEFT = 58, RIGHT = 12, TOP = 12, BOTTOM = 34;

function svg(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (parent) parent.append(element);
  return element;
}

function html(name, text, parent, classes) {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  if (classes) element.className = classes;
  if (parent) parent.append(element);
  return element;
}

// Returns a number in at most five digits, or as many as are asked for, with k, M, G behind it where it is large.
function short(value, digits = 0) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= unit) return +(value / (letter === "k" ? 1e3 : unit)).toPrecision(Math.max(4, digits)) + letter;
  if (size !== 0 && size < 1e-3) return value.toExponential(Math.max(2, digits - 1));
  return String(+value.toPrecision(Math.max(5, digits)));
}

// Returns the words of an axis' marks, with as many digits as tell each from the next.
function words(marks) {
  const step = marks.length > 1 ? marks[1] - marks[0] : 0;
  return marks.map((value) => {
    if (Math.abs(value) < step / 2) return "0";
    const digits = step > 0 ? Math.floor(Math.log10(Math.abs(value) / step) + 1e-9) + 2 : 0;
    return short(value, Math.min(digits, 15));
  });
}

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((factor) => raw <= factor * unit * 1.0001);
  const marks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) marks.push(value);
  return marks;
}

// Returns the index of the first x that is not below `x`; xs ascend.
function lower(xs, x) {
  let low = 0, high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low;
}

class Chart {
  constructor(host, spec, runs) {
    this.spec = spec;
    this.runs = runs;
    this.picture = svg("svg", {role: "img", tabindex: 0, "aria-label": spec.title}, host);
    this.tip = html("div", "", host, "tip");
    const ends = spec.lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
    this.whole = [Math.min(...ends), Math.max(...ends)];
    if (this.whole[0] === this.whole[1]) this.whole[1] += 1;
    this.view = this.whole;
    this.drag = null;
    this.picture.addEventListener("pointermove", (event) => this.hover(event));
    this.picture.addEventListener("pointerleave", () => this.leave());
    this.picture.addEventListener("pointerdown", (event) => this.press(event));
    this.picture.addEventListener("pointerup", (event) => this.release(event));
    this.picture.addEventListener("dblclick", () => this.show(this.whole));
    this.picture.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(host);
  }

  x(value) { return LEFT + (value - this.view[0]) / (this.view[1] - this.view[0]) * (this.width - LEFT - RIGHT); }
  y(value) { return TOP + (this.high - value) / (this.high - this.low) * (HEIGHT - TOP - BOTTOM); }
  value(event) {
    const at = (event.clientX - this.picture.getBoundingClientRect().left - LEFT) / (this.width - LEFT - RIGHT);
    return this.view[0] + Math.min(1, Math.max(0, at)) * (this.view[1] - this.view[0]);
  }

  show(view) {
    if (view[1] - view[0] < (this.whole[1] - this.whole[0]) * 1e-6) return;
    this.view = [Math.max(view[0], this.whole[0]), Math.min(view[1], this.whole[1])];
    this.draw();
  }

  // Finds the lowest and highest value in view.
  fit() {
    let low = Infinity, high = -Infinity;
    for (const {x, y} of this.spec.lines)
      for (let i = Math.max(0, lower(x, this.view[0]) - 1); i < x.length && x[i] <= this.view[1]; ++i) {
        if (y[i] < low) low = y[i];
        if (y[i] > high) high = y[i];
      }
    if (low > high) [low, high] = [0, 1];
    const pad = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    this.low = low >= 0 ? Math.max(0, low - pad) : low - pad;
    this.high = high + pad;
  }

  draw() {
    this.width = this.picture.parentElement.clientWidth;
    if (!this.width) return;
    this.fit();
    this.picture.replaceChildren();
    this.picture.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const across = ticks(this.low, this.high, 5), names = words(across);
    for (const [at, value] of across.entries()) {
      const y = this.y(value);
      svg("line", {class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y}, this.picture);
      svg("text", {x: LEFT - 6, y: y + 4, "text-anchor": "end"}, this.picture).textContent = names[at];
    }
    const along = ticks(this.view[0], this.view[1], Math.max(2, this.width / 110)), steps = words(along);
    for (const [at, value] of along.entries())
      svg("text", {x: this.x(value), y: HEIGHT - 18, "text-anchor": "middle"}, this.picture).textContent = steps[at];
    svg("text", {x: this.width / 2, y: HEIGHT - 3, "text-anchor": "middle"}, this.picture).textContent = "step";
    for (const line of this.spec.lines) this.line(line);
    this.cross = svg("line", {class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"}, this.picture);
    this.band = svg("rect", {class: "band", y: TOP, height: HEIGHT - TOP - BOTTOM, visibility: "hidden"}, this.picture);
  }

  line(line) {
    const colour = `c${line.run % COLOURS}`, first = Math.max(0, lower(line.x, this.view[0]) - 1);
    let path = "";
    for (let i = first; i < line.x.length; ++i) {
      const x = this.x(line.x[i]), y = this.y(line.y[i]);
      if (line.dots) {
        if (x >= LEFT && x <= this.width - RIGHT) svg("circle", {class: `dot ${colour}`, cx: x, cy: y, r: 3.5}, this.picture);
      } else {
        path += `${path ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      }
      if (line.x[i] > this.view[1]) break;
    }
    if (!line.dots) {
      const dash = DASHES[Math.floor(line.run / COLOURS) % DASHES.length];
      svg("path", {class: `curve ${colour}`, d: path, "stroke-dasharray": dash}, this.picture);
    }
  }

  hover(event) {
    const at = this.value(event);
    if (this.drag !== null) {
      const [from, to] = [this.drag, at].sort((a, b) => a - b).map((value) => this.x(value));
      for (const [key, value] of [["x", from], ["width", to - from], ["visibility", "visible"]]) this.band.setAttribute(key, value);
    }
    this.tip.replaceChildren();
    let nearest = null;
    for (const line of this.spec.lines) {
      let i = lower(line.x, at);
      if (i > 0 && (i === line.x.length || at - line.x[i - 1] < line.x[i] - at)) --i;
      if (line.x[i] === undefined) continue;
      if (nearest === null || Math.abs(line.x[i] - at) < Math.abs(nearest - at)) nearest = line.x[i];
      const row = html("div", "", this.tip);
      html("i", "", row, `c${line.run % COLOURS} d${Math.floor(line.run / COLOURS) % DASHES.length}`);
      const name = this.runs.length > 1 ? this.runs[line.run] + " " : "";
      html("span", `${name}${line.dots ? "validation " : ""}${short(line.y[i])} at ${line.x[i]}`, row);
    }
    if (nearest === null) return;
    const x = this.x(nearest);
    for (const [key, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) this.cross.setAttribute(key, value);
    this.tip.style.visibility = "visible";
    this.tip.style.left = Math.max(0, Math.min(x + 12, this.width - this.tip.offsetWidth)) + "px";
  }

  leave() {
    this.tip.style.visibility = "hidden";
    if (this.cross) this.cross.setAttribute("visibility", "hidden");
  }

  press(event) {
    if (event.pointerType === "touch" || event.button !== 0) return;  // a finger scrolls the page
    this.drag = this.value(event);
    this.picture.setPointerCapture(event.pointerId);
  }

  release(event) {
    if (this.drag === null) return;
    const [from, to] = [this.drag, this.value(event)].sort((a, b) => a - b);
    this.drag = null;
    this.band.setAttribute("visibility", "hidden");
    if (this.x(to) - this.x(from) > 8) this.show([from, to]);
  }

  key(event) {
    const [low, high] = this.view, quarter = (high - low) / 4;
    const views = {"+": [low + quarter, high - quarter], "-": [low - quarter * 2, high + quarter * 2],
      "0": this.whole, ArrowLeft: [low - quarter, high - quarter], ArrowRight: [low + quarter, high + quarter]};
    if (!views[event.key]) return;
    event.preventDefault();
    this.show(views[event.key]);
  }
}

// Draws one square for each rank, a row for each node, coloured from the lowest to the highest value.
function heat_map(host, ranks, columns) {
  const choice = html("select", "", host);
  choice.setAttribute("aria-label", "What the colours stand for");
  columns.forEach((column, index) => { html("option", column.title, choice).value = index; });
  const said = html("output", "", host);
  const grid = html("div", "", host, "heat");
  const draw = () => {
    const column = columns[choice.value], known = column.values.filter((value) => value !== null);
    const low = Math.min(...known), high = Math.max(...known);
    const words = (value) => value === null ? "not known" : `${short(value)} ${column.unit}`;
    said.textContent = known.length ? `${words(low)} (light) to ${words(high)} (dark)` : "not known";
    grid.replaceChildren();
    let row = null, node = null;
    ranks.forEach((rank, index) => {
      if (rank.node !== node) {
        node = rank.node;
        html("span", node, grid, "node");
        row = html("div", "", grid, "row");
      }
      const value = column.values[index];
      const square = html("button", "", row, rank.mark ? "marked" : "");
      if (value === null) square.classList.add("unknown");
      else square.style.opacity = high > low ? 0.2 + 0.8 * (value - low) / (high - low) : 0.6;
      square.title = `rank ${rank.rank} on ${rank.node}: ${words(value)}${rank.mark ? "; " + rank.mark : ""}`;
      square.setAttribute("aria-label", square.title);
      const tell = () => { said.textContent = square.title; };
      square.addEventListener("pointerenter", tell);
      square.addEventListener("focus", tell);
    });
  };
  choice.addEventListener("change", draw);
  draw();
}

const page = JSON.parse(document.getElementById("data").textContent);
page.charts.forEach((spec, index) => new Chart(document.getElementById(`chart${index}`), spec, page.runs));
page.heat.forEach((heat, index) => heat_map(document.getElementById(`heat${index}`), heat.ranks, heat.columns));
