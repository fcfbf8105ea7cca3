"use strict";
// What is shown: protocol, methods, single runs. One set of controls per comparison moves all of its charts.

const DATA = JSON.parse(document.getElementById("data").textContent);
const KEY = "sphere-report";

function remembered() {
  try { return JSON.parse(sessionStorage.getItem(KEY) || "{}"); } catch { return {}; }
}

function remember(state) {
  try { sessionStorage.setItem(KEY, JSON.stringify(state)); } catch { /* a page from disk may not store anything */ }
}

const states = remembered();

function stateOf(index) {
  const known = states[index] || {}, data = DATA[index];
  const protocol = data.protocols.includes(known.protocol) ? known.protocol : data.protocols[data.protocols.length - 1];
  return { protocol, hidden: (known.hidden || []).filter((name) => data.methods.includes(name)), single: Boolean(known.single) };
}

function show(section) {
  const index = Number(section.dataset.comparison), data = DATA[index], state = stateOf(index);
  for (const button of section.querySelectorAll("[data-protocol]")) button.setAttribute("aria-pressed", button.dataset.protocol === state.protocol);
  for (const button of section.querySelectorAll("[data-method]")) button.setAttribute("aria-pressed", !state.hidden.includes(data.methods[button.dataset.method]));
  for (const box of section.querySelectorAll("input.single")) box.checked = state.single;
  const seen = (method) => !state.hidden.includes(data.methods[method]);
  for (const box of section.querySelectorAll(".plot")) draw(box, data, state, seen);
  for (const entry of section.querySelectorAll("[data-entry]")) entry.hidden = !seen(Number(entry.dataset.entry));
  for (const only of section.querySelectorAll("[data-only]")) only.hidden = only.dataset.only !== state.protocol;
}

function draw(box, data, state, seen) {
  const kind = box.dataset.kind;
  if (kind === "bars") {
    const methods = data.methods.map((_, i) => i).filter((i) => seen(i) && data.bars.some((bar) => bar.method === i));
    drawBars(box, { names: data.methods, methods, bars: data.bars.filter((bar) => seen(bar.method)), protocols: data.protocols,
      word: data.word, unit: `average ${data.word}`, bounded: data.bounded });
  } else if (kind === "lines") {
    const name = box.dataset.metric, curves = data.curves[state.protocol][name] || [];
    box.closest("figure").hidden = !curves.length && Boolean(box.dataset.small);
    drawLines(box, {
      series: curves.filter((one) => seen(one.method)), methods: data.methods, title: box.dataset.title, tasks: data.tasks,
      taskSteps: data.taskSteps, single: state.single, small: Boolean(box.dataset.small), stepUnit: data.stepUnit, yUnit: box.dataset.unit,
      fixed: box.dataset.bounded ? [0, 1] : null,
      // a line ends with its task where the next is another task's number, or another network's
      breaks: (name.startsWith("evaluation/") || state.protocol === "rl") && !data.manyTasks,
    });
  } else if (kind === "tasks") {
    drawLines(box, {
      series: data.byTask[state.protocol].filter((one) => seen(one.method)), methods: data.methods, title: data.word, tasks: data.tasks,
      taskSteps: 1, unit: "task", yUnit: box.dataset.unit, single: state.single, small: false, fixed: data.bounded ? [0, 1] : null, breaks: false,
    });
  } else if (kind === "heat") drawLoads(box, data, state, seen);
}

function drawLoads(box, data, state, seen) {
  box.textContent = "";
  const loads = data.loads[state.protocol].filter((one) => seen(one.method));
  box.closest(".loads").hidden = !data.loads[state.protocol].length;
  let most = 0.01; // by a loop: a call takes only so many arguments
  for (const one of loads) for (const view of one.views) for (const row of view.share) for (const share of row) most = Math.max(most, share);
  const paint = [], maps = Object.assign(document.createElement("div"), { className: "maps" });
  box.append(maps);
  for (const one of loads) {
    const holder = document.createElement("div"), head = document.createElement("div"), plot = document.createElement("div");
    holder.className = "load"; head.className = "load-head"; plot.className = "load-plot";
    const name = Object.assign(document.createElement("strong"), { textContent: data.methods[one.method] });
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", `runs of ${data.methods[one.method]}`);
    one.views.forEach((view, i) => choice.append(Object.assign(document.createElement("option"), { value: i, textContent: view.name })));
    head.append(name, choice); holder.append(head, plot); maps.append(holder);
    paint.push(() => drawHeat(plot, { view: one.views[Number(choice.value)], most, title: data.methods[one.method], tasks: data.tasks, taskSteps: data.taskSteps, stepUnit: data.stepUnit }));
    choice.addEventListener("change", paint[paint.length - 1]);
  }
  for (const one of paint) one(); // when all have their place and with it their width
  const experts = loads.length ? loads[0].views[0].share.length : 0;
  box.append(Object.assign(document.createElement("p"), { className: "scale", textContent: experts ? `Full colour: ${spell(most)} of all selections; balanced would be ${spell(1 / experts)}.` : "" }));
}

function change(section, edit) {
  const index = Number(section.dataset.comparison), state = stateOf(index);
  edit(state, DATA[index]);
  states[index] = state;
  remember(states);
  show(section);
}

for (const section of document.querySelectorAll("section.comparison")) {
  section.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.protocol) change(section, (state) => { state.protocol = button.dataset.protocol; });
    if (button.dataset.method) change(section, (state, data) => {
      const name = data.methods[button.dataset.method];
      state.hidden = state.hidden.includes(name) ? state.hidden.filter((other) => other !== name) : [...state.hidden, name];
    });
  });
  section.addEventListener("change", (event) => { if (event.target.classList.contains("single")) change(section, (state) => { state.single = event.target.checked; }); });
  let width = 0;
  new ResizeObserver(() => {
    if (section.clientWidth !== width) { width = section.clientWidth; requestAnimationFrame(() => show(section)); }
  }).observe(section);
  show(section);
}

const version = document.body.dataset.version;
if (version) {
  const status = document.getElementById("live");
  setInterval(async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      const now = (await answer.text()).trim();
      status.textContent = "live";
      if (answer.ok && now !== version) location.reload();
    } catch { status.textContent = "not reachable: sphere watch has ended"; }
  }, 2000);
}
document.documentElement.dataset.drawn = "yes";
