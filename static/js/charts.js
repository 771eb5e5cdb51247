// The only file that touches Plotly. A figure with data-chart="address" is drawn when it comes into view: the address
// gives a document (plumbline_web/curves/charts.py) that says what is shown; colours and sizes are decided here, from
// the custom properties of the page, and again when the theme changes.

const DASHES = ["solid", "dash", "dot", "dashdot"];
const PALETTE = 8;
const MOST_TICKS = 8;
const DENSE = 500; // points from which a line is drawn thinner
const FALLBACK_HEIGHT = 320;
const TOP = 0.98; // where steps that are no number are marked, in parts of the plot's height

let plotly;
const drawn = new Map(); // figure → document

function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const meta = document.querySelector("meta[name=plumbline-plotly]");
    // Plotly and what it bundles write style sheets of their own unless these ids are taken; the policy refuses inline
    // ones, and charts.css has the rules.
    for (const id of meta.dataset.styleIds.split(" ")) takeStyleId(id);
    const script = document.createElement("script");
    script.src = meta.content;
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => reject(new Error("plotly.js could not be loaded")));
    document.head.append(script);
  });
  return plotly;
}

function takeStyleId(id) {
  if (document.getElementById(id)) return;
  const taken = document.createElement("meta");
  taken.id = id;
  taken.className = "no-inline-styles";
  document.head.append(taken);
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return {
    ink: get("--ink"),
    soft: get("--ink-soft"),
    line: get("--line"),
    strong: get("--line-strong"),
    paper: get("--paper"),
    panel: get("--panel-strong"),
    fail: get("--fail"),
    accent: get("--accent"),
    font: get("--font-text"),
    traces: Array.from({ length: PALETTE }, (_, i) => get(`--trace-${i}`)),
  };
}

// symlog: linear up to `below`, logarithmic beyond; Plotly has no such axis, so the values are moved and the ticks named.
const bend = (value, below) => (value === null ? null : Math.sign(value) * Math.log10(1 + Math.abs(value) / below));

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

// Plotly writes an exponent as markup with a style attribute, which the policy refuses; these are characters.
function power(exponent) {
  if (exponent === 0 || exponent === 1) return exponent ? "10" : "1";
  return `10${[...String(exponent)].map((sign) => SUPERSCRIPTS[sign]).join("")}`;
}

function logTicks(values) {
  const sizes = values.filter((value) => value > 0).map(Math.log10);
  if (!sizes.length) return {};
  const from = Math.floor(Math.min(...sizes));
  const to = Math.ceil(Math.max(...sizes));
  const stride = Math.max(1, Math.ceil((to - from) / MOST_TICKS));
  const exponents = [];
  for (let exponent = from; exponent <= to; exponent += stride) exponents.push(exponent);
  const within = to - from <= 2 ? exponents.flatMap((e) => [1, 2, 5].map((m) => [m, e])) : exponents.map((e) => [1, e]);
  return {
    tickvals: within.map(([m, e]) => m * 10 ** e),
    ticktext: within.map(([m, e]) => (m === 1 ? power(e) : e === 0 || e === 1 ? String(m * 10 ** e) : `${m}·${power(e)}`)),
  };
}

function symlogTicks(values, below) {
  const largest = Math.max(below, ...values.filter((value) => value !== null).map(Math.abs));
  const from = Math.ceil(Math.log10(below));
  const to = Math.floor(Math.log10(largest));
  const stride = Math.max(1, Math.ceil((to - from + 1) / 4));
  const sizes = [];
  for (let exponent = to; exponent >= from; exponent -= stride) sizes.push(exponent);
  const places = sizes.map((exponent) => bend(10 ** exponent, below));
  return {
    tickvals: [...places.map((place) => -place), 0, ...places],
    ticktext: [...sizes.map((exponent) => `−${power(exponent)}`), "0", ...sizes.map(power)],
  };
}

const fade = (colour, share) => {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${share})`;
};

function styleOf(trace, theme) {
  const colour = theme.traces[trace.colour % PALETTE];
  const dash = DASHES[Math.floor(trace.colour / PALETTE) % DASHES.length];
  switch (trace.style) {
    case "faint":
      return { mode: "lines", line: { color: fade(colour, 0.35), width: 1, dash } };
    case "points":
      return { mode: "markers", marker: { color: colour, size: 5 } };
    case "wrong":
      return { mode: "markers", marker: { color: theme.fail, size: 7, symbol: "triangle-up" } };
    case "threshold":
      return { mode: "lines", line: { color: theme.fail, width: 1, shape: "hvh" } };
    case "floor":
      return { mode: "lines", line: { color: theme.strong, width: 1, dash: "dot", shape: "hvh" } };
    case "band":
      return { mode: "lines", line: { color: fade(theme.strong, 0.6), width: 0.5 }, hoverinfo: "skip" };
    case "nonfinite":
      return { mode: "markers", marker: { color: colour, size: 9, symbol: "x-thin", line: { color: colour, width: 2 } } };
    default:
      return {
        mode: trace.y.length > 60 ? "lines" : "lines+markers",
        line: { color: colour, width: trace.y.length > DENSE ? 1 : 1.5, dash },
        marker: { color: colour, size: 4 },
      };
  }
}

function buildTraces(chart, theme) {
  const symlog = chart.y.scale === "symlog";
  const bands = chart.traces.filter((trace) => trace.style === "band");
  return chart.traces.map((trace) => {
    const lost = trace.style === "nonfinite";
    const shown = lost ? trace.x.map(() => TOP) : symlog ? trace.y.map((v) => bend(v, chart.y.linear_below)) : trace.y;
    const style = styleOf(trace, theme);
    const isBand = trace.style === "band";
    return {
      type: "scatter",
      name: trace.name,
      x: trace.x,
      y: shown,
      yaxis: lost ? "y2" : "y",
      customdata: trace.y.map((value, i) => [value === null ? "not finite" : String(value), trace.text[i] ?? ""]),
      hovertemplate: isBand ? undefined : lost ? "%{customdata[1]}<br>not finite<extra>%{fullData.name}</extra>"
        : "%{customdata[1]}<br>%{customdata[0]}<extra>%{fullData.name}</extra>",
      showlegend: isBand ? trace === bands[0] : trace.legend && chart.traces.length > 1,
      connectgaps: false,
      ...(isBand && trace === bands[1] ? { fill: "tonexty", fillcolor: fade(theme.strong, 0.2) } : {}),
      ...style,
    };
  });
}

function buildShapes(chart, theme) {
  const symlog = chart.y.scale === "symlog";
  const across = { yref: "paper", y0: 0, y1: 1 };
  return [
    ...chart.spans.map((span) => ({
      type: "rect", layer: "below", x0: span.start, x1: span.stop, ...across,
      fillcolor: fade(theme.strong, 0.18), line: { width: 0 },
    })),
    ...chart.rules.map((rule) => ({
      type: "line", x0: rule.at, x1: rule.at, ...across,
      line: rule.kind === "first" ? { color: theme.accent, width: 1.5 } : { color: theme.strong, width: 1, dash: "dot" },
    })),
    ...chart.levels.map((level) => {
      const at = symlog ? bend(level.at, chart.y.linear_below) : level.at;
      const line = { threshold: { color: theme.fail, width: 1 }, floor: { color: theme.strong, width: 1, dash: "dot" } };
      return {
        type: "line", layer: "below", xref: "paper", x0: 0, x1: 1, y0: at, y1: at,
        line: line[level.kind] ?? { color: theme.accent, width: 1 },
      };
    }),
  ];
}

function buildNotes(chart, theme) {
  const symlog = chart.y.scale === "symlog";
  const font = { size: 11, color: theme.soft };
  return [
    ...chart.levels.filter((level) => level.text).map((level) => ({
      text: level.text, xref: "paper", x: 1, xanchor: "right", showarrow: false, font,
      yanchor: level.kind === "floor" ? "top" : "bottom",
      y: symlog ? bend(level.at, chart.y.linear_below) : level.at,
    })),
    ...chart.rules.filter((rule) => rule.kind === "first").map((rule) => ({
      text: rule.text, x: rule.at, yref: "paper", y: 1, xanchor: "left", yanchor: "bottom", showarrow: false,
      font: { size: 11, color: theme.ink },
    })),
  ];
}

function buildLayout(chart, theme, figure) {
  const axis = {
    color: theme.soft, gridcolor: theme.line, linecolor: theme.strong, zerolinecolor: theme.line,
    zeroline: false, showline: true, ticks: "outside", ticklen: 4, tickcolor: theme.strong, automargin: true,
  };
  const y = { ...axis, title: { text: chart.y.title, font: { size: 12 } }, exponentformat: "e" };
  const all = [...chart.traces.flatMap((t) => (t.style === "nonfinite" ? [] : t.y)), ...chart.levels.map((l) => l.at)];
  if (chart.y.scale === "log") Object.assign(y, { type: "log", ...logTicks(all) });
  if (chart.y.scale === "symlog") Object.assign(y, symlogTicks(all, chart.y.linear_below));
  const numbers = all.filter((value) => value !== null);
  // Around a constant Plotly would draw ±1, and a learning rate of 0.001 would look like 0.
  if (chart.y.scale === "linear" && numbers.length && numbers.every((value) => value === numbers[0])) {
    const half = Math.abs(numbers[0]) / 10 || 1;
    y.range = [numbers[0] - half, numbers[0] + half];
  }
  const x = { ...axis, title: { text: chart.x.title, font: { size: 12 } }, showgrid: false, exponentformat: "SI" };
  if (chart.x.ticks.length) {
    Object.assign(x, { tickvals: chart.x.ticks.map(([at]) => at), ticktext: chart.x.ticks.map(([, text]) => text) });
  }
  const box = figure.querySelector("[data-plot]");
  const many = chart.traces.filter((trace) => trace.legend).length > 1;
  return {
    height: Math.round(box.getBoundingClientRect().height) || FALLBACK_HEIGHT,
    margin: { l: 64, r: 8, t: chart.rules.some((rule) => rule.kind === "first") ? 24 : 8, b: many ? 64 : 44 },
    paper_bgcolor: theme.paper,
    plot_bgcolor: theme.paper,
    font: { family: theme.font, size: 12, color: theme.ink },
    showlegend: many,
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, traceorder: "normal", font: { size: 11 } },
    hoverlabel: { bgcolor: theme.panel, bordercolor: theme.strong, font: { color: theme.ink, size: 12 } },
    hovermode: "closest",
    dragmode: "zoom",
    xaxis: x,
    yaxis: y,
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
    shapes: buildShapes(chart, theme),
    annotations: buildNotes(chart, theme),
  };
}

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: true, doubleClick: "reset" };

async function draw(figure) {
  const chart = drawn.get(figure);
  const theme = readTheme();
  const Plotly = await loadPlotly();
  const box = figure.querySelector("[data-plot]");
  figure.dataset.drawn = "";
  await Plotly.react(box, buildTraces(chart, theme), buildLayout(chart, theme, figure), CONFIG);
}

async function show(figure) {
  const note = figure.querySelector("[data-note]");
  note.textContent = "loading the curve …";
  try {
    const response = await fetch(figure.dataset.chart, { headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    const chart = await response.json();
    if (chart.empty) {
      figure.dataset.empty = "";
      note.textContent = chart.empty;
      return;
    }
    drawn.set(figure, chart);
    await draw(figure);
    note.textContent = [chart.note, chart.more].filter(Boolean).join(". ");
  } catch (error) {
    note.classList.add("chart-error");
    note.textContent = `The curve could not be drawn: ${error.message}. Reload the page to try again; the table has the numbers.`;
  }
}

function start(root = document) {
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watch.unobserve(entry.target);
      show(entry.target);
    }
  }, { rootMargin: "200px" });
  for (const figure of root.querySelectorAll("figure[data-chart]")) {
    if (figure.dataset.watched === undefined) {
      figure.dataset.watched = "";
      watch.observe(figure);
    }
  }
}

start();
document.addEventListener("plumbline:theme", () => {
  for (const figure of drawn.keys()) if (figure.isConnected) draw(figure);
});
document.addEventListener("htmx:afterSettle", (event) => start(event.target));
