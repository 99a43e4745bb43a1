// A scatter plot of two columns: a trace for each condition, error bars, axes logarithmic where that shows more.
const MOST_POINTS = 3000, MOST_BARS = 500;

function scatter(spec, height) {
  const cohort = cohorts[spec.cohort || 0];
  const xs = cohort.values[spec.x], ys = cohort.values[spec.y];
  const step = Math.ceil(cohort.runs.length / MOST_POINTS);
  const bars = cohort.runs.length <= MOST_BARS;
  const traces = new Map();
  cohort.runs.forEach((run, place) => {
    if (xs[place] === null || ys[place] === null || place % step) return;
    const condition = conditionOf(run);
    if (!traces.has(condition)) traces.set(condition, { x: [], y: [], ex: [], ey: [], runs: [], text: [] });
    const trace = traces.get(condition);
    const ex = cohort.errors[spec.x][place], ey = cohort.errors[spec.y][place];
    trace.x.push(xs[place]); trace.y.push(ys[place]); trace.ex.push(ex || 0); trace.ey.push(ey || 0); trace.runs.push(run);
    const shown = (column, value, error) => `${plotText(labels[column] || column)}: ${number(value)}${error ? ` ± ${number(error, 2)}` : ""}`;
    trace.text.push(`<b>${plotText(runName(run))}</b><br>${shown(spec.x, xs[place], ex)}<br>${shown(spec.y, ys[place], ey)}`);
  });
  const error = (values, shade) => ({ type: "data", array: values, visible: bars && values.some((v) => v > 0), color: shade, thickness: 0.8, width: 0 });
  const size = cohort.runs.length > 200 ? 5 : 9;
  return {
    data: [...traces].sort((a, b) => a[0] - b[0]).map(([condition, t]) => {
      const shade = conditionColour(condition);
      return {
        type: "scatter", mode: "markers", x: t.x, y: t.y, error_x: error(t.ex, shade), error_y: error(t.ey, shade), hoverinfo: "text", hovertext: t.text,
        marker: { color: shade, symbol: conditionSymbol(condition), size, opacity: 0.85, line: { color: css("paper"), width: 0.8 } },
        selected: { marker: { opacity: 1, size: size + 4 } }, unselected: { marker: { opacity: DIM } }, meta: { runs: t.runs, ex: t.ex, ey: t.ey },
      };
    }),
    layout: styled({ xaxis: axisOf(spec.x, [].concat(...[...traces.values()].map((t) => t.x))), yaxis: axisOf(spec.y, [].concat(...[...traces.values()].map((t) => t.y))) }, height),
  };
}
