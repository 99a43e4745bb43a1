// The look that all figures share.
const coarse = matchMedia("(pointer: coarse)").matches;
const CONFIG = {
  responsive: true, displaylogo: false, showLink: false, showTips: false, showSendToCloud: false, plotlyServerURL: "", scrollZoom: false, displayModeBar: coarse ? false : "hover",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "pan2d", "zoom2d", "hoverClosestCartesian",
    "hoverCompareCartesian", "toggleSpikelines", "resetCameraLastSave3d", "hoverClosest3d", "tableRotation", "zoom3d", "pan3d", "orbitRotation"],
  toImageButtonOptions: { format: "svg" },
};
const styled = (layout, height) => {
  const ink = css("ink"), muted = css("muted"), grid = css("grid"), line = css("line");
  const axis = (given = {}) => ({
    gridcolor: grid, zerolinecolor: line, linecolor: line, tickcolor: line, tickfont: { size: 11, color: muted }, automargin: true,
    ...given, title: { font: { size: 12, color: ink }, standoff: 8, ...(given.title || {}) },
  });
  const out = {
    autosize: true, height, margin: { l: 52, r: 12, t: 8, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css("sans"), size: 12, color: ink }, hovermode: "closest", dragmode: coarse ? false : "zoom", clickmode: "event", showlegend: false,
    hoverlabel: { bgcolor: css("raised"), bordercolor: line, font: { family: css("sans"), size: 12, color: ink }, align: "left" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11, color: muted }, bgcolor: "rgba(0,0,0,0)" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: ink },
    ...layout,
  };
  const axes = Object.keys(out).filter((key) => /^[xy]axis\d*$/.test(key));
  for (const key of new Set(["xaxis", "yaxis", ...axes])) out[key] = axis(out[key]);
  return out;
};
const spansDecades = (values) => {
  const known = values.filter((v) => v !== null);
  const low = Math.min(...known), high = Math.max(...known);
  return known.length > 0 && low > 0 && high > 100 * low;
};
const axisOf = (column, values) => {
  const logarithmic = spansDecades(values);
  return { title: { text: plotText(labels[column] || column) }, type: logarithmic ? "log" : "linear", exponentformat: "power",
    ...(logarithmic ? { dtick: Math.log10(Math.max(...values.filter((v) => v))) - Math.log10(Math.min(...values.filter((v) => v))) > 4 ? 2 : 1 } : { nticks: 6 }) };
};
const number = (value, digits = 4) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
};
