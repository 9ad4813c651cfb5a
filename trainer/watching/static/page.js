// Follows the runs: fetches the content and the curves again and again, and changes only what has changed.
"use strict";

const COLOURS = 6; // of runs, as in page.css
const CHARTS = [
  // title, [tag, words, whether evaluations (dashed)], how values are shown
  ["Loss", [[/^train\/total_loss_average$/, "training", false], [/^eval\/(.+)\/loss$/, "", true], [/^evaluate: eval\/(.+)\/loss$/, "evaluated", true]], (v) => v.toPrecision(4)],
  ["Accuracy", [[/^train\/epoch_accuracy$/, "training", false], [/^eval\/(.+)\/accuracy$/, "", true], [/^evaluate: eval\/(.+)\/accuracy$/, "evaluated", true]], (v) => v.toFixed(4)],
  ["Images per second", [[/^train\/examples_per_second$/, "job", false]], (v) => Math.round(v).toLocaleString("en")],
  ["Input wait", [[/^train\/input_wait$/, "job", false]], (v) => (100 * v).toFixed(1) + "%"],
  ["Learning rate", [[/^train\/learning_rate$/, "job", false]], (v) => short(Number(v.toPrecision(3)))],
  ["Steps of each worker", [[/^worker\/(\d+)\/steps$/, "worker", false]], (v) => Math.round(v).toLocaleString("en")],
  ["Seconds per step of each worker", [[/^worker\/(\d+)\/seconds_per_step$/, "worker", false]], (v) => v.toPrecision(3)],
];
const NO_METRICS = ["accuracy", "loss", "total_loss", "regularization"]; // which have a chart of their own, or none
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 432000, 864000]; // between ticks
const OFTEN = 2000, SELDOM = 10000, HEIGHT = 190; // milliseconds, pixels

const content = document.getElementById("content");
const connection = document.getElementById("connection");
const name = content.dataset.run;
let curves = [], charts = new Map(), lastAnswer = Date.now(), seen = "";

function axis() {
  return document.querySelector("#axis input:checked").value;
}

function colour(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

// Makes `old` equal to `fresh` with as few changes as possible: focus, scrolling and selection stay.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.dataset.keep !== undefined) return;
  for (const { name: attribute } of [...old.attributes])
    if (!fresh.hasAttribute(attribute) && !(old.nodeName === "DETAILS" && attribute === "open")) old.removeAttribute(attribute);
  for (const { name: attribute, value } of fresh.attributes)
    if (old.getAttribute(attribute) !== value) old.setAttribute(attribute, value);
  morphAll(old, fresh);
}

function morphAll(old, fresh) {
  const now = [...fresh.childNodes], before = [...old.childNodes];
  now.forEach((node, i) => (i < before.length ? morph(before[i], node) : old.append(node)));
  before.slice(now.length).forEach((node) => node.remove());
}

// One x for all lines of a chart: steps, or seconds since the first value of a run.
function linesOf(patterns) {
  const found = [];
  curves.forEach((run, number) => {
    const tags = Object.keys(run.curves);
    const first = Math.min(...tags.map((tag) => run.curves[tag].times[0]));
    for (const [pattern, words, dashed] of patterns)
      for (const tag of tags) {
        const match = pattern.exec(tag);
        if (!match) continue;
        const own = [words, match[1]].filter(Boolean).join(" ");
        const label = (curves.length > 1 ? [run.run, own === "job" ? "" : own] : [own]).filter(Boolean).join(" ");
        const one = run.curves[tag];
        const x = axis() === "step" ? one.steps : one.times.map((time) => time - first);
        found.push({ label, dashed, number: words === "worker" ? Number(match[1]) : number, x, y: one.values });
      }
  });
  return found;
}

// The charts above, with one for each other metric that a task may have.
function chartsOf(runs) {
  const names = new Set();
  for (const run of runs)
    for (const tag of Object.keys(run.curves)) {
      const match = /^train\/epoch_(.+)$/.exec(tag) ?? /^(?:evaluate: )?eval\/.+\/([^/]+)$/.exec(tag);
      if (match && !NO_METRICS.includes(match[1])) names.add(match[1]);
    }
  const metrics = [...names].map((metric) => {
    const own = metric.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const patterns = [[new RegExp(`^train/epoch_${own}$`), "training", false], [new RegExp(`^eval/(.+)/${own}$`), "", true], [new RegExp(`^evaluate: eval/(.+)/${own}$`), "evaluated", true]];
    return [metric, patterns, (v) => v.toPrecision(4)];
  });
  return [...CHARTS.slice(0, 2), ...metrics, ...CHARTS.slice(2)];
}

function isLog(title, lines) {
  return title === "Loss" && document.getElementById("log").checked && lines.every(({ y }) => y.every((v) => v == null || v > 0));
}

function joined(lines) {
  // Times go on, but steps may repeat in them after a resume: uPlot needs ascending x.
  const tables = lines.map(({ x, y }) => {
    const order = x.map((_, i) => i).sort((a, b) => x[a] - x[b]);
    return [order.map((i) => x[i]), order.map((i) => y[i])];
  });
  return uPlot.join(tables, tables.map((table) => table.map(() => 1)));
}

function since(seconds) {
  const s = Math.round(seconds), parts = [Math.floor(s / 3600), Math.floor(s / 60) % 60, s % 60];
  return parts.map((part, i) => (i ? String(part).padStart(2, "0") : part)).join(":");
}

function short(value) {
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e6)) return String(Number(value.toPrecision(3)).toExponential());
  return value.toLocaleString("en", { maximumFractionDigits: 6 });
}

function options(title, lines, text, width) {
  const side = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const ofX = axis() === "step" ? (v) => Math.round(v).toLocaleString("en") : since;
  return {
    width, height: HEIGHT,
    cursor: { sync: { key: "runs" }, points: { size: 5 }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { distr: isLog(title, lines) ? 3 : 1 } },
    axes: [
      { ...side, size: 24, space: 48, values: (_, ticks) => ticks.map(ofX), ...(axis() === "time" && { incrs: SECONDS }) },
      { ...side, size: 56, space: 34, values: (_, ticks) => ticks.map((v) => (v == null ? "" : title === "Input wait" ? short(100 * v) + "%" : short(v))) },
    ],
    series: [
      { label: axis(), value: (_, v) => (v == null ? "–" : ofX(v)) },
      ...lines.map(({ label, dashed, number }) => ({
        label, width: 1.5, spanGaps: true, dash: dashed ? [5, 3] : undefined,
        stroke: colour(`--c${(lines.every((l) => l.number === 0) && dashed ? 1 : number) % COLOURS}`),
        points: { show: (u, i) => u.data[i].filter((v) => v != null).length < (dashed ? 25 : 2), size: 4 },
        value: (u, v, line, i) => {
          // Lines have values at different x: the newest one up to here.
          for (let at = i; v == null && at > 0; ) v = u.data[line][--at];
          return v == null ? "–" : text(v);
        },
      })),
    ],
    legend: { live: true },
    hooks: { setCursor: [atEnd] },
  };
}

// Without a cursor the legend has the newest values.
function atEnd(plot) {
  if (plot.cursor.idx == null && plot.data[0].length) plot.setLegend({ idx: plot.data[0].length - 1 });
}

function drawCharts(rebuild) {
  const place = document.getElementById("curves");
  for (const [title, patterns, text] of chartsOf(curves)) {
    const lines = linesOf(patterns);
    let chart = charts.get(title);
    if (!lines.length) {
      if (chart) chart.figure.hidden = true;
      continue;
    }
    const data = joined(lines), key = lines.map(({ label }) => label).join("\n") + axis() + isLog(title, lines);
    if (!chart) {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption"), box = document.createElement("div");
      caption.textContent = title;
      figure.append(caption, box);
      figure.tabIndex = 0;
      figure.addEventListener("keydown", (event) => step(title, event));
      place.append(figure);
      chart = { figure, box };
      charts.set(title, chart);
    }
    chart.figure.hidden = false;
    const newest = lines.map(({ label, y }) => `${label} ${text(y.findLast((v) => v != null) ?? NaN)}`).join(", ");
    chart.figure.setAttribute("aria-label", `${title}: ${newest}. Arrow keys move along the curve.`);
    chart.figure.setAttribute("role", "group");
    if (chart.plot && chart.key === key && !rebuild) {
      chart.plot.setData(data);
      atEnd(chart.plot);
    } else {
      chart.plot?.destroy();
      chart.plot = new uPlot(options(title, lines, text, widthOf(chart.figure)), data, chart.box);
      chart.key = key;
      atEnd(chart.plot);
    }
  }
}

function widthOf(figure) {
  return Math.floor(figure.getBoundingClientRect().width);
}

function step(title, event) {
  const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
  const plot = charts.get(title).plot;
  if (by === undefined || !plot) return;
  event.preventDefault();
  const last = plot.data[0].length - 1, now = plot.cursor.idx ?? (by < 0 ? last + 1 : -1);
  const idx = Math.min(last, Math.max(0, now + by));
  plot.setCursor({ left: plot.valToPos(plot.data[0][idx], "x"), top: 10 });
}

async function fetched(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer;
}

async function update() {
  const answer = await fetched(`content?run=${encodeURIComponent(name)}`);
  const fresh = document.createElement("template");
  fresh.innerHTML = await answer.text();
  morphAll(content, fresh.content);
  if (answer.headers.get("X-Curves") !== seen) {
    const { runs } = await (await fetched("curves.json")).json();
    seen = answer.headers.get("X-Curves");
    curves = runs;
    drawCharts(false);
  }
  return answer.headers.get("X-Live") === "1";
}

async function follow() {
  let wait = SELDOM;
  if (!document.hidden) {
    try {
      const live = await update();
      lastAnswer = Date.now();
      connection.textContent = live ? "live" : "ended";
      delete connection.dataset.lost;
      wait = live ? OFTEN : SELDOM;
    } catch (error) {
      connection.textContent = `no answer for ${Math.round((Date.now() - lastAnswer) / 1000)} s`;
      connection.dataset.lost = "";
      console.warn(error);
      wait = OFTEN;
    }
  }
  timer = setTimeout(follow, wait);
}

async function drawBatch(button) {
  const box = button.closest("#batch"), status = box.querySelector("[role=status]"), image = box.querySelector("img");
  button.disabled = true;
  status.textContent = "reading and augmenting …";
  try {
    const answer = await fetched(`batch.png?run=${encodeURIComponent(box.dataset.run)}`);
    const step = answer.headers.get("X-Step");
    if (image.src) URL.revokeObjectURL(image.src);
    image.src = URL.createObjectURL(await answer.blob());
    image.alt = `the augmented batch of step ${step}`;
    image.hidden = false;
    status.textContent = `step ${Number(step).toLocaleString("en")}`;
  } catch (error) {
    status.textContent = `not drawn: ${error.message}`;
  }
  button.disabled = false;
}

let timer = 0;
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) {
    clearTimeout(timer);
    follow();
  }
});
document.querySelector("body > header").addEventListener("change", () => drawCharts(true));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(true));
content.addEventListener("click", (event) => {
  const button = event.target.closest("#batch button");
  if (button) drawBatch(button);
});
new ResizeObserver(() => {
  for (const { figure, plot } of charts.values())
    if (plot && widthOf(figure) && plot.width !== widthOf(figure)) plot.setSize({ width: widthOf(figure), height: HEIGHT });
}).observe(content);
follow();
