"use strict";
// Bars of averages, and maps of how experts share the work.

function drawBars(box, spec) {
  // a row of bars per method: its name above, RL and CRL below one another, so that no name is ever cut off
  box.textContent = "";
  const width = Math.max(box.clientWidth, 200), bar = 16, row = 26 + spec.protocols.length * (bar + 5) + 12;
  const edge = { left: spec.protocols.length > 1 ? 40 : 8, right: 56, top: 4, bottom: 46 };
  const height = edge.top + spec.methods.length * row + edge.bottom, inner = width - edge.left - edge.right;
  // from 0 to 1, or as far as scores without bounds reach; 0 is always in view
  const values = spec.bars.flatMap((b) => [b.mean, b.low, b.high, b.paper, ...b.runs]).filter((value) => value !== null);
  const marks = spec.bounded ? [0, 0.25, 0.5, 0.75, 1] : ticks(Math.min(0, ...values), Math.max(0, ...values) || 1, 5);
  const low = spec.bounded ? 0 : Math.min(0, ...values), high = spec.bounded ? 1 : Math.max(0, ...values) || (low < 0 ? 0 : 1);
  const x = (value) => edge.left + ((Math.max(low, Math.min(high, value)) - low) / (high - low)) * inner;
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `average ${spec.word}: ${spec.bars.map((b) => `${spec.names[b.method]} ${b.protocol.toUpperCase()} ${b.text}`).join("; ")}` }, box);
  const axis = node("g", { class: "axis" }, svg);
  for (const value of marks) {
    const anchor = spec.bounded || x(value) > edge.left + 20 ? "middle" : "start";
    node("line", { class: "grid", x1: x(value), x2: x(value), y1: edge.top, y2: height - edge.bottom }, axis);
    node("text", { x: x(value), y: height - 27, "text-anchor": anchor }, axis, spec.bounded ? `${value}` : label(value, marks[1] - marks[0] || 1));
  }
  units(axis, edge, { width, height, tall: 0 }, spec.unit, "");
  spec.methods.forEach((method, place) => {
    const top = edge.top + place * row;
    node("text", { class: "name", x: edge.left, y: top + 18 }, svg, spec.names[method]);
    spec.protocols.forEach((protocol, k) => {
      const one = spec.bars.find((b) => b.method === method && b.protocol === protocol);
      const y = top + 26 + k * (bar + 5), middle = y + bar / 2;
      if (spec.protocols.length > 1) node("text", { class: "protocol", x: edge.left - 7, y: middle + 4, "text-anchor": "end" }, svg, protocol.toUpperCase());
      if (!one) { node("text", { class: "protocol", x: edge.left + 6, y: middle + 4 }, svg, "no finished run"); return; }
      const tip = `${spec.names[method]}, ${protocol.toUpperCase()}: ${one.text}` +
        (one.low === null ? "" : `, 95% interval ${spell(one.low)} to ${spell(one.high)}`) + `, runs ${one.runs.map(spell).join(", ")}` +
        (one.paper === null ? "" : `; paper ${spell(one.paper)}`);
      const group = node("g", {}, svg);
      node("title", {}, group, tip);
      node("rect", { class: protocol === "rl" && spec.protocols.length > 1 ? "bar light" : "bar", x: Math.min(x(0), x(one.mean)), y, width: Math.max(Math.abs(x(one.mean) - x(0)), 1), height: bar, rx: 2, fill: colour(one) }, group);
      if (one.low !== null) node("path", { class: "whisker", d: `M${x(one.low)} ${middle}H${x(one.high)}M${x(one.low)} ${middle - 4}v8M${x(one.high)} ${middle - 4}v8` }, group);
      one.runs.forEach((value, i) => node("circle", { class: "dot", cx: x(value), cy: middle + ((i % 3) - 1) * 3.5, r: 2.4, stroke: colour(one) }, group));
      if (one.paper !== null) node("path", { class: "paper", d: `M${x(one.paper)} ${y - 2}l4.5 ${bar / 2 + 2}l-4.5 ${bar / 2 + 2}l-4.5 ${-bar / 2 - 2}Z` }, group);
      node("text", { class: "value", x: width - edge.right + 14, y: middle + 4 }, group, one.text);
    });
  });
}

function drawHeat(box, spec) {
  // experts down, evaluations across; full colour is the largest share in any map of the comparison
  box.textContent = "";
  const width = Math.max(box.clientWidth, 200), experts = spec.view.share.length, count = spec.view.step.length;
  const cell = Math.max(5, Math.min(20, 180 / experts)), edge = { left: 62, right: 10, top: 6, bottom: 46 };
  const tall = experts * cell, height = edge.top + tall + edge.bottom, inner = width - edge.left - edge.right;
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `share of selections by expert over training, ${spec.title}; last evaluation: ${spec.view.share.map((r) => spell(r[count - 1])).join(", ")}` }, box);
  const every = Math.max(1, Math.ceil(14 / cell));
  spec.view.share.forEach((shares, expert) => {
    const y = edge.top + expert * cell;
    if (expert % every === 0) node("text", { class: "axis-text", x: edge.left - 7, y: y + cell / 2 + 4, "text-anchor": "end" }, svg, `${expert + 1}`);
    shares.forEach((share, i) => {
      if (share === null) return;
      const at = edge.left + (i * inner) / count;
      const rect = node("rect", { class: "cell", x: at, y, width: inner / count + 0.3, height: cell - 1, "fill-opacity": Math.max(0.03, share / spec.most).toFixed(3) }, svg);
      node("title", {}, rect, `expert ${expert + 1}, ${spec.view.step[i].toLocaleString("en")} steps: ${spell(share)}`);
    });
  });
  const marks = ticks(0, spec.view.step[count - 1], Math.max(4, Math.floor(inner / 75)));
  for (const value of marks) {
    const at = edge.left + (value / spec.view.step[count - 1]) * inner;
    node("text", { class: "axis-text", x: Math.min(at, width - 2), y: height - 27, "text-anchor": at > width - 24 ? "end" : at < edge.left + 12 ? "start" : "middle" }, svg, steps(value));
  }
  units(svg, edge, { width, height, tall }, spec.stepUnit, spec.view.name.includes("by load") ? "experts by load" : "expert");
  const thick = (spec.taskSteps / spec.view.step[count - 1]) * inner < 4; // boundaries would hide the map
  for (let task = 1; task < spec.tasks.length && !thick; task++) {
    const at = edge.left + ((task * spec.taskSteps) / spec.view.step[count - 1]) * inner;
    if (at < width - edge.right) node("line", { class: "boundary strong", x1: at, x2: at, y1: edge.top, y2: edge.top + experts * cell }, svg);
  }
}
