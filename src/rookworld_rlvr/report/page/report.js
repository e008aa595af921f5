"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const LIGHT_COLORS = ["#1f5fa8", "#c2410c", "#17713a", "#8a2f8f", "#9a6b00", "#0f7c83", "#b3261e", "#5b5f66"];
const DARK_COLORS = ["#86b8f2", "#ff9d66", "#5fcf8a", "#d99be0", "#f0c35a", "#63d0d6", "#ff8a80", "#b4b9c0"];
const many = data.runs.length > 1;
const color = (place) => (dark.matches ? DARK_COLORS : LIGHT_COLORS)[place % LIGHT_COLORS.length];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PENALIZED = "reward/penalized";
let plots = [];

function smoothed(values, width) {
  if (width <= 1) return values;
  let sum = 0, held = [];
  return values.map((value) => {
    held.push(value);
    sum += value;
    if (held.length > width) sum -= held.shift();
    return sum / held.length;
  });
}

// Curves of different steps share one axis: where a curve has no value it has none drawn, and its line goes on.
function aligned(curves, width) {
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, at) => [step, at]));
  return [steps, ...curves.map((curve) => {
    const values = new Array(steps.length).fill(undefined);
    smoothed(curve.values, width).forEach((value, at) => { values[place.get(curve.steps[at])] = value; });
    return values;
  })];
}

function drawMarks(plot) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const run of data.runs) for (const mark of run.marks) {
    const x = plot.valToPos(mark.step, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = style(mark.kind === "fault" ? "--bad" : "--sign");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function label(curve, prefix) {
  return many ? data.runs[curve.run].name : curve.key.slice(prefix.length) || curve.key;
}

function commonPrefix(keys) {
  const parts = keys.map((key) => key.split("/"));
  let length = 0;
  while (keys.length > 1 && parts.every((part) => part.length > length + 1 && part[length] === parts[0][length])) length++;
  return parts[0].slice(0, length).map((part) => part + "/").join("");
}

function drawCharts() {
  const host = document.getElementById("charts");
  plots.forEach((plot) => plot.destroy());
  plots = [];
  host.replaceChildren();
  const width = Number(document.getElementById("smooth").value);
  const axis = { stroke: style("--quiet"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
  for (const chart of data.charts) {
    const box = document.createElement("div");
    box.className = "chart";
    const heading = document.createElement("h3");
    heading.textContent = chart.title;
    const notes = document.createElement("details");
    notes.innerHTML = "<summary>what is drawn</summary>";
    for (const note of chart.notes) notes.append(Object.assign(document.createElement("p"), { textContent: note }));
    box.append(heading);
    host.append(box);
    const keys = [...new Set(chart.curves.map((curve) => curve.key))];
    const prefix = commonPrefix(keys);
    const series = chart.curves.map((curve) => ({
      label: label(curve, prefix),
      stroke: color(many ? curve.run : keys.indexOf(curve.key)),
      width: 1.5,
      // It lies on the mean where no completion is penalised.
      dash: curve.key === PENALIZED ? [6, 4] : [],
      spanGaps: true,
      points: { show: chart.curves[0].steps.length < 3 },
      value: (_plot, value) => value == null ? "" : Number(value.toPrecision(4)).toString(),
    }));
    const options = {
      width: Math.max(200, box.clientWidth - 24),
      height: 210,
      scales: { x: { time: false } },
      cursor: { sync: { key: "steps" } },
      axes: [axis, { ...axis, size: 58 }],
      series: [{ label: "step", value: (_plot, value) => value == null ? "" : String(Math.round(value)) }, ...series],
      hooks: { draw: [drawMarks] },
    };
    plots.push(new uPlot(options, aligned(chart.curves, width), box));
    box.append(notes);
  }
}

const PAGE = 24;
let room = PAGE;

function filterCards() {
  const cards = [...document.querySelectorAll(".said")];
  const wanted = [...document.querySelectorAll("[data-filter]")].filter((choice) => choice.value !== "");
  const limit = (id, none) => { const text = document.getElementById(id)?.value; return text ? Number(text) : none; };
  const lowest = limit("lowest", -Infinity), highest = limit("highest", Infinity);
  const fits = cards.filter((card) => {
    const reward = Number(card.dataset.reward);
    return wanted.every((choice) => card.dataset[choice.dataset.filter] === choice.value) && !(reward < lowest || reward > highest);
  });
  cards.forEach((card) => { card.hidden = true; });
  fits.slice(0, room).forEach((card) => { card.hidden = false; });
  const count = document.getElementById("count");
  if (count) count.textContent = `${Math.min(room, fits.length)} of ${fits.length} shown`;
  const more = document.getElementById("more");
  if (more) more.hidden = fits.length <= room;
}

function colorDots() {
  document.querySelectorAll(".dot").forEach((dot) => { dot.style.background = color(Number(dot.dataset.run)); });
}

document.querySelectorAll("[data-filter], #lowest, #highest").forEach((control) =>
  control.addEventListener("input", () => { room = PAGE; filterCards(); }));
document.getElementById("more")?.addEventListener("click", () => { room += PAGE; filterCards(); });
document.getElementById("smooth").addEventListener("input", drawCharts);
dark.addEventListener("change", () => { drawCharts(); colorDots(); });
let wide = innerWidth;
addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; drawCharts(); } });
colorDots();
drawCharts();
filterCards();
