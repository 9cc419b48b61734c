/* What a page does beside htmx: it refreshes itself while somebody looks at it, shows times in the zone of the browser,
   draws plots, follows a topic, and says when the dashboard itself does not answer. */
"use strict";

const root = document.documentElement;
const every = Number(root.dataset.every || 4) * 1000;
let paused = root.dataset.paused === "yes";
let missed = 0;

/* refresh: one timer a page; nothing is asked while the page is hidden, paused, or an answer is still due */
function refresh() {
  if (!paused && !document.hidden && !document.querySelector("#live.htmx-request")) {
    document.body.dispatchEvent(new CustomEvent("refresh"));
  }
}
setInterval(refresh, every);
document.addEventListener("visibilitychange", refresh);

function showPaused() {
  const button = document.getElementById("pause");
  if (!button) return;
  button.setAttribute("aria-pressed", String(paused));
  button.title = paused ? button.dataset.paused : button.dataset.running;
  button.querySelector(".unseen").textContent = button.title;
  button.classList.toggle("is-paused", paused);
}
function togglePause() {
  paused = !paused;
  showPaused();
  if (!paused) refresh();
}

/* the dashboard itself is away: said once, and taken back with the next answer */
function answered(isAnswer) {
  const notice = document.getElementById("away");
  missed = isAnswer ? 0 : missed + 1;
  if (notice) notice.hidden = missed < 1;
}
document.addEventListener("htmx:error", () => answered(false));
document.addEventListener("htmx:before:response", () => answered(true));
document.addEventListener("htmx:before:swap", (event) => {
  /* an answer that is no page, such as one of another program on the port, replaces nothing */
  const live = event.detail?.ctx?.target;
  const text = event.detail?.ctx?.text;
  if (live?.id === "live" && typeof text === "string" && !text.includes('id="live"')) {
    event.preventDefault();
    answered(false);
  }
});

/* times */
const clock = new Intl.DateTimeFormat(root.lang, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const date = new Intl.DateTimeFormat(root.lang, { year: "numeric", month: "2-digit", day: "2-digit" });
function showTimes(within) {
  for (const time of within.querySelectorAll("time[data-ms]")) {
    const at = new Date(Number(time.dataset.ms));
    const day = date.format(at);
    const isToday = day === date.format(new Date());
    const text = (isToday && !("whole" in time.dataset) ? "" : day + " ") + clock.format(at);
    if (time.textContent !== text) time.textContent = text;
    time.title = at.toISOString();
  }
}

/* plots */
const plots = new Map();
function colour(name) {
  return getComputedStyle(root).getPropertyValue(name).trim();
}
function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, sign] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (Math.abs(value) >= size) return (value / size).toFixed(Math.abs(value) >= size * 100 ? 0 : 1) + " " + sign;
  }
  return Math.round(value) + " B";
}
const minute = new Intl.DateTimeFormat(root.lang, { hour: "2-digit", minute: "2-digit", hour12: false });
function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return (value / size).toFixed(Math.abs(value) >= size * 100 ? 0 : 1) + sign;
  }
  return String(Math.round(value * 100) / 100);
}
const lines = ["--accent", "--warn", "--good", "--bad", "--quiet"];
function plotOptions(element, names) {
  const say = element.dataset.unit === "bytes" ? bytes : short;
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
    font: "12px system-ui, sans-serif" };
  return {
    width: element.clientWidth, height: 180, cursor: { y: false }, legend: { show: names.length > 1 },
    scales: { y: { range: (_, low, high) => [Math.min(0, low || 0), Math.max(1, (high || 0) * 1.08)] } },
    axes: [
      { ...axis, space: 90, size: 30, values: (_, times, __, ___, step) =>
        times.map((at) => (step < 60 ? clock : minute).format(new Date(at * 1000))) },
      { ...axis, size: 70, space: 36, values: (_, values) => values.map(say) },
    ],
    series: [
      { label: element.dataset.time, value: (_, at) => (at === null ? "–" : clock.format(new Date(at * 1000))) },
      ...names.map((label, index) => ({ label, stroke: colour(lines[index % lines.length]), width: 2,
        fill: names.length === 1 ? colour("--accent") + "22" : undefined, points: { show: false },
        value: (_, value) => say(value), spanGaps: true })),
    ],
  };
}
function draw(element) {
  const { names, rows } = JSON.parse(element.dataset.plot);
  const known = plots.get(element);
  const look = root.dataset.theme + colour("--accent") + names.join("\n");
  if (known && known.look === look) {
    known.plot.setData(rows);
    return;
  }
  known?.plot.destroy();
  if (!rows.length || rows[0].length < 2) {
    plots.delete(element);
    return;
  }
  element.replaceChildren();
  plots.set(element, { plot: new uPlot(plotOptions(element, names), rows, element), look });
}
function drawAll() {
  for (const [element, { plot }] of plots) {
    if (!element.isConnected) { plot.destroy(); plots.delete(element); }
  }
  for (const element of document.querySelectorAll(".plot[data-plot]")) draw(element);
}
addEventListener("resize", () => {
  for (const [element, { plot }] of plots) plot.setSize({ width: element.clientWidth, height: 180 });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

/* live tail: rows come as HTML that the server has escaped; the newest is on top, and old ones go */
function follow(element) {
  const rows = element.querySelector("tbody");
  const state = element.querySelector("[data-state]");
  const button = element.querySelector("button[data-stop]");
  const most = Number(element.dataset.most);
  let source = null;
  const say = (name) => {
    state.textContent = state.dataset[name];
    state.className = "pill " + { running: "live", stopped: "", away: "bad" }[name];
    button.textContent = source ? button.dataset.stop : button.dataset.start;
  };
  const start = () => {
    source = new EventSource(element.dataset.follow);
    source.onopen = () => say("running");
    source.onerror = () => say("away");
    source.addEventListener("away", (event) => { say("away"); element.querySelector("[data-reason]").textContent = event.data; });
    source.addEventListener("rows", (event) => {
      say("running");
      element.querySelector("[data-reason]").textContent = "";
      const fresh = document.createElement("template");
      fresh.innerHTML = event.data;
      showTimes(fresh.content);
      rows.prepend(fresh.content);
      while (rows.children.length > most) rows.lastElementChild.remove();
      element.querySelector("[data-empty]").hidden = rows.children.length > 0;
    });
    say("running");
  };
  const stop = () => { source?.close(); source = null; say("stopped"); };
  button.addEventListener("click", () => (source ? stop() : start()));
  addEventListener("pagehide", () => source?.close());
  start();
}

/* a scan goes on step by step until its limit, or until it is stopped */
document.addEventListener("click", (event) => {
  const stop = event.target.closest("[data-stop-scan]");
  if (stop) {
    const step = document.getElementById("step");
    htmx.trigger(step, "htmx:abort");
    step.querySelector("[data-running]").hidden = true;
    step.querySelector("[data-stopped]").hidden = false;
    step.removeAttribute("hx-get");
    stop.hidden = true;
  }
  if (event.target.closest("#pause")) togglePause();
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    const text = document.getElementById(copy.dataset.copy).textContent;
    navigator.clipboard?.writeText(text).then(() => { copy.textContent = copy.dataset.done; });
  }
});

/* keyboard: "/" goes to the search field, "p" pauses */
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  } else if (event.key === "p" && document.getElementById("pause")) {
    togglePause();
  }
});

function begin() {
  showTimes(document);
  drawAll();
  showPaused();
  document.querySelector(".side a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  for (const element of document.querySelectorAll("[data-follow]")) follow(element);
  document.addEventListener("htmx:after:swap", () => { showTimes(document); drawAll(); });
}
begin();
