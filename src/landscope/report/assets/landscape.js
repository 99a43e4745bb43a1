// Landscapes: lines of equal loss and surfaces, on one colour scale for all splits of all models.
const webgl = (() => {
  try { return Boolean(document.createElement("canvas").getContext("webgl")); } catch { return false; }
})();

const SCALE = "Viridis";
function landscapeParts(spec, model, height) {
  const log = spec.log;
  const height3 = (z) => (log ? z.map((row) => row.map((v) => (v === null ? null : Math.log10(v)))) : z);
  const [low, high] = log ? spec.ends.map(Math.log10) : spec.ends;
  const ticks = log ? (() => {
    const found = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) for (const digit of [1, 3]) found.push(digit * 10 ** power);
    const kept = found.filter((v) => Math.log10(v) >= low && Math.log10(v) <= high);
    return { tickvals: kept.map(Math.log10), ticktext: kept.map((v) => number(v, 2)) };
  })() : (() => {
    const rough = (high - low) / 5 || 1, unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((digit) => digit * unit >= rough);
    const kept = [];
    for (let at = Math.ceil(low / step); at * step <= high; at += 1) kept.push(at * step);
    return { tickvals: kept, ticktext: kept.map((v) => number(v, 2)) };
  })();
  const bar = { title: { text: spec.title, side: "right", font: { size: 11 } }, thickness: 10, outlinewidth: 0, tickfont: { size: 10, color: css("muted") }, ...ticks };
  const hover = (split) => split.z.map((row, j) => row.map((v, i) => `a = ${number(split.x[i], 3)}, b = ${number(split.y[j], 3)}<br>loss ${number(v)}`));
  const flat = model.splits.map((split, place) => ({
    name: `${split.name}: contours`,
    data: [
      { type: "contour", x: split.x, y: split.y, z: height3(split.z), zmin: low, zmax: high, colorscale: SCALE, ncontours: 18, contours: { coloring: "heatmap", start: low, end: high, size: (high - low || 1) / 14 },
        line: { width: 0.7, color: "rgba(255,255,255,0.55)" }, showscale: place === model.splits.length - 1, colorbar: bar, hoverinfo: "text", text: hover(split) },
      ...(split.path ? [{ type: "scatter", mode: "lines+markers", x: split.path.map((p) => p[0]), y: split.path.map((p) => p[1]), line: { color: "#fff", width: 1.2 }, marker: { size: 4, color: "#fff" }, hoverinfo: "skip" }] : []),
      { type: "scatter", mode: "markers", x: [0], y: [0], marker: { symbol: "cross-thin", size: 12, line: { color: "#fff", width: 2 } }, hoverinfo: "skip" },
    ],
    layout: styled({ xaxis: { title: { text: plotText(spec.labels[0]) }, constrain: "domain", zeroline: false }, yaxis: { title: { text: plotText(spec.labels[1]) }, scaleanchor: "x", constrain: "domain", zeroline: false }, margin: { l: 46, r: 10, t: 8, b: 40 } }, height),
  }));
  const axis = (title) => ({ title: { text: title, font: { size: 11 } }, color: css("muted"), gridcolor: css("grid"), zerolinecolor: css("grid"), showbackground: false, tickfont: { size: 10 } });
  const solid = model.splits.map((split) => ({
    name: `${split.name}: surface`, needsWebgl: true,
    data: [{ type: "surface", x: split.x, y: split.y, z: height3(split.z), cmin: low, cmax: high, colorscale: SCALE, showscale: false, hoverinfo: "text", text: hover(split), contours: { z: { show: true, usecolormap: false, color: "rgba(255,255,255,0.35)", width: 1, start: low, end: high, size: (high - low || 1) / 14 } } }],
    layout: styled({ margin: { l: 0, r: 0, t: 0, b: 0 }, dragmode: "turntable",
      scene: { xaxis: axis("1st direction"), yaxis: axis("2nd direction"), zaxis: { ...axis("loss"), range: [low, high], ...ticks }, camera: { eye: { x: 1.5, y: 1.5, z: 1.0 } }, aspectmode: "manual", aspectratio: { x: 1, y: 1, z: 0.75 } } }, height),
  }));
  return [...flat, ...solid];
}
