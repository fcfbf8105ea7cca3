"use strict";
// Charts as inline SVG from plain numbers. Each draws itself again when its width, the zoom or what is shown changes.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];

function node(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

const colour = (one) => `var(--method-${one.colour})`;
const dash = (one) => DASHES[one.dash];

function spell(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(size < 0.1 ? 3 : 2);
}

function steps(value) {
  if (value >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  return value >= 1e3 ? `${+(value / 1e3).toFixed(1)}k` : `${value}`;
}

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / unit - 1e-9); k * unit <= high + unit * 1e-9; k++) found.push(+(k * unit).toPrecision(10));
  return found;
}

function label(value, unit) {
  return Math.abs(value) >= 1e4 ? value.toExponential(0) : `${+value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(unit))))}`;
}

function span(series, fixed, range) {
  // the values in view, with a little air; a score between 0 and 1 has its own scale
  if (fixed) return fixed;
  let low = Infinity, high = -Infinity;
  for (const one of series)
    one.step.forEach((step, i) => {
      if (step < range[0] || step > range[1]) return;
      low = Math.min(low, one.low[i]);
      high = Math.max(high, one.high[i]);
    });
  if (!(low <= high)) return [0, 1];
  const air = (high - low) * 0.08 || Math.abs(high) * 0.1 || 0.5;
  return [low >= 0 && low - air < 0 ? 0 : low - air, high + air];
}

function path(one, values, x, y, breaks) {
  let text = "", pen = false;
  one.step.forEach((step, i) => {
    if (values[i] === null) { pen = false; return; }
    const fresh = !pen || (breaks && one.task[i] !== one.task[i - 1]);
    // a line of no length is a dot where strokes end round: all there is of a task with one evaluation
    text += `${fresh ? "M" : "L"}${x(step).toFixed(1)} ${y(values[i]).toFixed(1)}${fresh ? "h0" : ""}`;
    pen = true;
  });
  return text;
}

function areas(one, x, y, breaks) {
  const found = [];
  let start = 0;
  for (let i = 1; i <= one.step.length; i++)
    if (i === one.step.length || (breaks && one.task[i] !== one.task[i - 1])) {
      const range = [...Array(i - start).keys()].map((k) => k + start);
      const up = range.map((k) => `${x(one.step[k]).toFixed(1)} ${y(one.high[k]).toFixed(1)}`);
      const down = range.reverse().map((k) => `${x(one.step[k]).toFixed(1)} ${y(one.low[k]).toFixed(1)}`);
      if (up.length > 1) found.push(`M${[...up, ...down].join("L")}Z`);
      start = i;
    }
  return found.join("");
}

let serial = 0;

function drawLines(box, spec) {
  // spec: series, title, fixed [low, high] or null, tasks, taskSteps, breaks, single, small, unit ("task": x counts tasks)
  box.textContent = "";
  const width = Math.max(box.clientWidth, 200), height = spec.small ? 190 : 290;
  const names = !spec.small;
  const edge = { left: spec.yUnit ? 62 : 46, right: 10, top: names ? 28 : 12, bottom: 46 };
  const inner = width - edge.left - edge.right, tall = height - edge.top - edge.bottom;
  const series = spec.series;
  if (!series.length) {
    const empty = document.createElement("p");
    empty.className = "empty";
    empty.textContent = "nothing to show: switch a method on, or wait for an evaluation";
    box.append(empty);
    return;
  }
  const last = Math.max(...series.map((one) => one.step[one.step.length - 1]));
  const whole = [0, Math.max(last, 1)];
  const range = box.zoom || whole;
  const [low, high] = span(series, spec.fixed, range);
  const x = (step) => edge.left + ((step - range[0]) / (range[1] - range[0])) * inner;
  const y = (value) => edge.top + (1 - (value - low) / (high - low)) * tall;
  const told = series.map((one) => `${spec.methods[one.method]} from ${spell(one.mean[0])} to ${spell(one.mean[one.mean.length - 1])}`);
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, width, height, tabindex: 0, role: "img",
    "aria-label": `${spec.title} over ${spec.unit === "task" ? "tasks" : "steps"}: ${told.join("; ")}. Arrow keys read values, plus and minus zoom, Escape resets.` }, box);
  const clip = `clip-${serial++}`;
  node("rect", { x: edge.left - 4, y: edge.top - 4, width: inner + 8, height: tall + 8 }, node("clipPath", { id: clip }, svg));
  const frame = node("g", { class: "axis" }, svg);
  const marks = ticks(low, high, 5);
  for (const value of marks) {
    node("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y(value), y2: y(value) }, frame);
    node("text", { x: edge.left - 7, y: y(value) + 4, "text-anchor": "end" }, frame, label(value, marks[1] - marks[0] || 1));
  }
  const across = ticks(range[0], range[1], Math.max(4, Math.floor(inner / 75)));
  across.forEach((value) => {
    const at = x(value), anchor = at > width - 24 ? "end" : at < edge.left + 12 ? "start" : "middle";
    node("text", { x: Math.min(at, width - 2), y: height - 27, "text-anchor": anchor }, frame, steps(value));
  });
  units(frame, edge, { width, height, tall }, spec.unit === "task" ? "number of the task" : spec.stepUnit, spec.yUnit);
  const full = spec.unit === "task" || boundaries(frame, spec, x, edge, { width, height, names, range });
  const legend = box.closest("figure").querySelector(".numbers");
  if (legend) legend.hidden = full;
  const plot = node("g", { "clip-path": `url(#${clip})` }, svg);
  for (const one of series) if (one.count > 1) node("path", { d: areas(one, x, y, spec.breaks), fill: colour(one), class: "band" }, plot);
  for (const one of series) {
    if (spec.single) for (const run of one.runs) node("path", { d: path(one, run.values, x, y, spec.breaks), stroke: colour(one), class: "run" }, plot);
    node("path", { d: path(one, one.mean, x, y, spec.breaks), stroke: colour(one), "stroke-dasharray": dash(one), class: "mean" }, plot);
    const lonely = one.step.length === 1 || (spec.breaks && one.task.every((task, i) => i === 0 || task !== one.task[i - 1]));
    if (lonely) one.step.forEach((step, i) => node("circle", { cx: x(step), cy: y(one.mean[i]), r: 3, fill: colour(one) }, plot));
  }
  reading(box, svg, spec, { x, y, edge, width, height, inner, tall, range, whole, plot });
}

function units(frame, edge, { width, height, tall }, across, up) {
  const middle = edge.top + tall / 2;
  node("text", { class: "unit", x: (edge.left + width - edge.right) / 2, y: height - 8, "text-anchor": "middle" }, frame, across);
  if (up) node("text", { class: "unit", x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` }, frame, up);
}

function boundaries(frame, spec, x, edge, { width, height, names, range }) {
  const count = spec.tasks.length, long = Math.max(...spec.tasks.map((task) => task.length));
  const room = x(spec.taskSteps) - x(0);
  const full = long * 6.6 + 8 < room;
  // numbers need room for their digits: every task, every second, fifth, tenth ...
  const need = (`${count}`.length * 7 + 8) / room;
  const every = full ? 1 : [1, 2, 5, 10, 20, 50, 100, 200, 500].find((some) => some >= need) || count;
  for (let task = every - 1; task < count; task += every) {
    const from = task * spec.taskSteps, to = from + spec.taskSteps;
    if (to <= range[0] || from >= range[1]) continue;
    if (from > range[0] && every === 1) node("line", { class: "boundary", x1: x(from), x2: x(from), y1: edge.top - (names ? 14 : 0), y2: height - edge.bottom }, frame);
    const middle = (Math.max(x(from), edge.left) + Math.min(x(to), width - edge.right)) / 2;
    const half = (full ? spec.tasks[task].length : `${task + 1}`.length) * 3.4;
    if (names && middle - half >= edge.left - 4 && middle + half <= width)
      node("text", { class: "task", x: middle, y: 14, "text-anchor": "middle" }, frame, full ? spec.tasks[task] : `${task + 1}`);
  }
  return full;
}

function reading(box, svg, spec, { x, y, edge, width, height, inner, tall, range, whole, plot }) {
  // the cross-hair by pointer or keys, and zoom by dragging or keys
  const all = [...new Set(spec.series.flatMap((one) => one.step))].filter((s) => s >= range[0] && s <= range[1]).sort((a, b) => a - b);
  const cross = node("line", { class: "cross", y1: edge.top, y2: edge.top + tall, visibility: "hidden" }, svg);
  const dots = node("g", {}, plot);
  const brush = node("rect", { class: "brush", y: edge.top, height: tall, visibility: "hidden" }, svg);
  const tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; tip.setAttribute("role", "status");
  box.append(tip);
  let at = -1, drag = null;

  function read(index) {
    at = Math.max(0, Math.min(all.length - 1, index));
    const step = all[at];
    if (step === undefined) return;
    cross.setAttribute("x1", x(step)); cross.setAttribute("x2", x(step)); cross.setAttribute("visibility", "visible");
    dots.textContent = ""; tip.textContent = "";
    const task = spec.tasks[Math.min(Math.floor((step - 1) / spec.taskSteps), spec.tasks.length - 1)];
    tip.append(Object.assign(document.createElement("div"), { className: "when", textContent: spec.unit === "task" ? `task ${step} · ${task}` : `${step.toLocaleString("en")} steps · ${task}` }));
    for (const one of spec.series) {
      const i = one.step.indexOf(step);
      if (i < 0) continue;
      node("circle", { cx: x(step), cy: y(one.mean[i]), r: 3.5, fill: colour(one) }, dots);
      const row = document.createElement("div"), key = document.createElement("i");
      key.style.background = colour(one);
      const more = one.count > 1 ? ` (${spell(one.low[i])} to ${spell(one.high[i])})` : "";
      row.append(key, `${spec.methods[one.method]} `, Object.assign(document.createElement("b"), { textContent: spell(one.mean[i]) }), more);
      tip.append(row);
    }
    tip.hidden = false;
    const right = x(step) + 12 + tip.offsetWidth > width;
    tip.style.left = `${Math.max(0, right ? x(step) - tip.offsetWidth - 12 : x(step) + 12)}px`;
    tip.style.top = `${edge.top}px`;
  }
  function quiet() { cross.setAttribute("visibility", "hidden"); dots.textContent = ""; tip.hidden = true; }
  function zoom(to, byKey) {
    box.zoom = to && to[1] - to[0] >= whole[1] / 200 ? [Math.max(to[0], whole[0]), Math.min(to[1], whole[1])] : null;
    drawLines(box, spec);
    if (byKey) box.querySelector("svg").focus({ preventScroll: true });
  }
  const place = (event) => Math.max(edge.left, Math.min(width - edge.right, ((event.clientX - svg.getBoundingClientRect().left) * width) / svg.getBoundingClientRect().width));
  const stepAt = (px) => range[0] + ((px - edge.left) / inner) * (range[1] - range[0]);
  const nearest = (px) => all.reduce((best, step, i) => (Math.abs(x(step) - px) < Math.abs(x(all[best]) - px) ? i : best), 0);

  svg.addEventListener("pointermove", (event) => {
    const px = place(event);
    if (drag !== null && Math.abs(px - drag) > 6) {
      quiet();
      brush.setAttribute("x", Math.min(px, drag)); brush.setAttribute("width", Math.abs(px - drag)); brush.setAttribute("visibility", "visible");
    } else read(nearest(px));
  });
  svg.addEventListener("pointerleave", () => { if (drag === null) quiet(); });
  svg.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0) { drag = place(event); svg.setPointerCapture(event.pointerId); } });
  svg.addEventListener("pointerup", (event) => {
    const from = drag, px = place(event);
    drag = null;
    if (from !== null && Math.abs(px - from) > 6) zoom([stepAt(Math.min(px, from)), stepAt(Math.max(px, from))]);
  });
  svg.addEventListener("dblclick", () => zoom(null));
  svg.addEventListener("blur", quiet);
  svg.addEventListener("keydown", (event) => {
    const centre = all[at] ?? (range[0] + range[1]) / 2, half = (range[1] - range[0]) / 2;
    const keys = {
      ArrowRight: () => read(at + 1), ArrowLeft: () => read(at - 1), Home: () => read(0), End: () => read(all.length - 1),
      "+": () => zoom([centre - half / 2, centre + half / 2], true), "-": () => zoom(half * 4 >= whole[1] ? null : [centre - half * 2, centre + half * 2], true),
      Escape: () => (box.zoom ? zoom(null, true) : quiet()),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  if (box.zoom) {
    const back = Object.assign(document.createElement("button"), { className: "reset", type: "button", textContent: "whole range" });
    back.addEventListener("click", () => zoom(null));
    box.append(back);
  }
}
