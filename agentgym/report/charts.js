"use strict";
// Charts by uPlot: values under the pointer, zoom by dragging, a double click for the whole, arrow keys point by point.
const short = (value, digits = 3) => {
  const size = Math.abs(value);
  for (const [scale, unit] of [[1e6, "M"], [1e3, "k"]]) {
    if (size >= scale) return `${+(value / scale).toPrecision(size >= 100 * scale ? digits : digits - 1)}${unit}`.replace("-", "−");
  }
  if (size && size < 1e-3) return (+value.toPrecision(digits)).toExponential().replaceAll("-", "−");
  return String(+value.toPrecision(digits)).replace("-", "−");
};
const SHOWN = {
  number: short,
  count: short,
  share: (value, digits = 3) => `${+(value * 100).toPrecision(digits)}%`.replace("-", "−"),
  seconds: (value, digits = 3) => `${+value.toPrecision(digits)} s`,
};
// Labels of an axis, with as many digits as tell them apart.
const labelsOf = (marks, show) => {
  const tries = [3, 4, 5, 6, 7, 8].map((digits) => marks.map((value) => show(value, digits)));
  return tries.find((labels) => new Set(labels).size === labels.length) ?? tries.at(-1);
};
// The width of the longest label in pixels, at least that of most numbers, so that charts above each other align.
const widthOf = (u, labels, at) => {
  const { font, gap } = u.axes[at];
  u.ctx.font = font[0];
  return Math.max(46, gap + Math.ceil(Math.max(0, ...(labels ?? []).map((one) => u.ctx.measureText(one).width)) / devicePixelRatio));
};
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const FONT = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
const INTEGERS = [1, 2, 5].flatMap((one) => [...Array(9).keys()].map((power) => one * 10 ** power)).sort((a, b) => a - b);

const charts = new Map(); // by element
const STYLES = {
  line: { width: 2 }, faint: { width: 1 }, dashed: { width: 1.8, dash: [6, 4] }, area: { width: 0 },
  dots: { width: 0, paths: () => null }, hollow: { width: 0, paths: () => null },
};

// Dots with whiskers, which uPlot has not.
const drawDots = (u, data) => {
  const ratio = devicePixelRatio;
  data.series.forEach((one) => {
    if (!["dots", "hollow"].includes(one.style)) return;
    const { ctx } = u;
    ctx.save();
    ctx.strokeStyle = variable(one.css);
    ctx.lineWidth = 1.5 * ratio;
    data.x.forEach((value, at) => {
      if (one.y[at] === null || value < u.scales.x.min || value > u.scales.x.max) return;
      const x = u.valToPos(value, "x", true);
      const y = (of) => u.valToPos(of, "y", true);
      ctx.beginPath();
      ctx.moveTo(x, y(one.low[at]));
      ctx.lineTo(x, y(one.high[at]));
      ctx.stroke();
      ctx.beginPath();
      ctx.arc(x, y(one.y[at]), 4 * ratio, 0, 2 * Math.PI);
      ctx.fillStyle = variable(one.style === "dots" ? one.css : "card");
      ctx.fill();
      ctx.stroke();
    });
    ctx.restore();
  });
};

// The smallest and largest value between two x, whiskers included.
const rangeOf = (data, low, high) => {
  const within = (at) => data.x[at] >= low && data.x[at] <= high;
  const values = data.series.flatMap((one) => [one.y, one.low, one.high].filter(Boolean)
    .flatMap((column) => column.filter((value, at) => value !== null && within(at))));
  if (!values.length) return [0, 1];
  const [least, most] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  if (!least && !most) return [data.from_zero ? 0 : -1, 1];
  const room = (most - least || Math.abs(most)) * 0.07;
  return [data.from_zero ? 0 : least - room, most + (data.from_zero ? most * 0.07 : room)];
};

const tipOf = (u, data) => {
  const at = u.cursor.idx;
  if (at === null || at === undefined || u.cursor.left < 0) return hideTip();
  const show = SHOWN[data.show];
  const lines = data.series.flatMap((one) => {
    const value = (one.shown ?? one.y)[at];
    if (value === null || value === undefined || (one.style === "area" && value === 0)) return [];
    const interval = one.low ? ` (${show(one.low[at])} to ${show(one.high[at])})` : "";
    return [`${one.name}: ${show(value)}${interval}`];
  });
  if (!lines.length) return hideTip();
  const box = u.over.getBoundingClientRect();
  showTip({ clientX: box.left + u.cursor.left, clientY: box.top + Math.max(0, u.cursor.top) }, [`step ${data.x[at]}`, ...lines].join("\n"));
};

const BAR = uPlot.paths.bars({ size: [0.4, 80] }); // an area needs two steps
const isOne = (values) => values.filter((value) => value !== null && value !== undefined).length === 1;

const drawChart = (element, zoom = null) => {
  const data = JSON.parse(element.dataset.chart);
  const colour = (one) => () => variable(one.css);
  const axis = { stroke: () => variable("soft"), font: FONT, ticks: { show: false } };
  const grid = { stroke: () => variable("line"), width: 1 };
  const [first, last] = [data.x[0], data.x.at(-1)];
  const hasDots = data.series.some((one) => one.low) ? 1 : 0; // which shall not lie on the axis
  const chart = new uPlot({
    width: element.clientWidth,
    height: element.clientHeight,
    legend: { show: false },
    padding: [8, 10, 0, 0],
    cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false }, focus: { prox: -1 } },
    scales: {
      x: { time: false, range: (u, low, high) => { const room = low === high ? 0.5 : hasDots * (high - low) * 0.02; return [low - room, high + room]; } },
      y: { range: (u) => rangeOf(data, u.scales.x.min ?? first, u.scales.x.max ?? last) },
    },
    axes: [
      { ...axis, size: 24, gap: 6, space: 50, grid: { show: false }, incrs: INTEGERS, values: (u, marks) => marks.map(String) },
      { ...axis, size: widthOf, gap: 4, space: 26, grid, ...(data.show === "count" ? { incrs: INTEGERS } : {}), values: (u, marks) => labelsOf(marks, SHOWN[data.show]) },
    ],
    series: [{}, ...data.series.map((one) => ({
      ...STYLES[one.style],
      label: one.name,
      spanGaps: true,
      stroke: colour(one),
      ...(one.style === "area" ? { fill: colour(one), ...(data.x.length === 1 ? { paths: BAR } : {}) } : {}),
      points: { show: isOne(one.y) && !["area", "dots", "hollow"].includes(one.style) }, // a line needs two
    }))],
    hooks: { draw: [(u) => drawDots(u, data)], setCursor: [(u) => tipOf(u, data)] },
  }, [data.x, ...data.series.map((one) => one.y)], element);
  if (zoom) chart.setScale("x", zoom);
  charts.set(element, chart);
  element.title = "";
  element.onkeydown = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) {
      const at = Math.max(0, Math.min((chart.cursor.idx ?? (by > 0 ? -1 : data.x.length)) + by, data.x.length - 1));
      chart.setCursor({ left: chart.valToPos(data.x[at], "x"), top: 8 });
    } else if (event.key === "Escape") {
      chart.setScale("x", { min: first, max: last });
      hideTip();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  element.onblur = hideTip;
};

// A chart is drawn when it has a width: those in closed parts of the page have none.
const sized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (!target.clientWidth) continue;
    const chart = charts.get(target);
    if (chart) chart.setSize({ width: target.clientWidth, height: target.clientHeight });
    else drawChart(target, zooms.get(target.dataset.key));
  }
});
const zooms = new Map(); // of charts that were renewed, by key
const drawCharts = (root) => { for (const element of root.querySelectorAll(".chart")) sized.observe(element); };

// Forget the charts of a part of the page that goes, and keep what was zoomed into.
const dropCharts = (root) => {
  for (const element of root.querySelectorAll(".chart")) {
    sized.unobserve(element);
    const chart = charts.get(element);
    if (!chart) continue;
    const { min, max } = chart.scales.x;
    const [first, last] = [chart.data[0][0], chart.data[0].at(-1)];
    if (min > first || max < last) zooms.set(element.dataset.key, { min, max });
    else zooms.delete(element.dataset.key);
    chart.destroy();
    charts.delete(element);
  }
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const chart of charts.values()) chart.redraw(false); });
