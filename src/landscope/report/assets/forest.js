// The forest plot: a facet for each outcome, side by side where there is room, otherwise one below the other.
function forest(spec, height, width) {
  const facets = spec.outcomes, rows = spec.measures.length;
  const wide = width >= 160 + 125 * facets.length || facets.length === 1;
  const layout = {}, traces = [], annotations = [], shapes = [];
  const ink = css("ink"), accent = css("accent"), faint = css("faint");
  const gap = 0.03, band = (1 - gap * (facets.length - 1)) / facets.length;
  facets.forEach((facet, place) => {
    const suffix = place ? String(place + 1) : "";
    const yName = wide ? "y" : `y${suffix}`;
    const from = wide ? place * (band + gap) : 0;
    const stacked = 0.5 / (rows + 2);
    const top = wide ? 1 : 1 - place / facets.length - stacked / facets.length * 1.6, bottom = wide ? 0 : 1 - (place + 1) / facets.length + 1.3 / facets.length / (rows + 2);
    layout[`xaxis${suffix}`] = { range: [-1.05, 1.05], tickvals: [-1, -0.5, 0, 0.5, 1], ticktext: ["−1", "−½", "0", "½", "1"], zeroline: true, zerolinecolor: faint, zerolinewidth: 1,
      domain: wide ? [from, from + band] : [0, 1], anchor: yName, fixedrange: true };
    if (!wide || !place) {
      layout[`yaxis${wide ? "" : suffix}`] = { type: "category", categoryorder: "array", categoryarray: spec.measures.map(plotText), range: [rows - 0.5, -0.5],
        domain: wide ? [0, 1] : [bottom, top], anchor: wide ? "x" : `x${suffix}`, fixedrange: true, tickfont: { size: 12, color: ink }, showgrid: true };
    }
    annotations.push({ text: plotText(facet.name), xref: "paper", yref: "paper", x: wide ? from + band / 2 : 0, y: top, yanchor: "bottom", xanchor: wide ? "center" : "left",
      yshift: 4, showarrow: false, font: { size: 12, color: ink } });
    for (const sure of [false, true]) {
      const kept = facet.rows.filter((row) => row.sure === sure && row.value !== null);
      const shade = sure ? accent : faint;
      traces.push({
        type: "scatter", mode: "markers", x: kept.map((row) => row.value), y: kept.map((row) => plotText(row.measure)), xaxis: `x${suffix}`, yaxis: yName,
        error_x: { type: "data", symmetric: false, array: kept.map((row) => (row.high === null ? 0 : row.high - row.value)), arrayminus: kept.map((row) => (row.low === null ? 0 : row.value - row.low)), color: shade, thickness: 1.6, width: 0 },
        marker: { color: sure ? shade : css("paper"), size: 8, line: { color: shade, width: 1.6 } },
        hoverinfo: "text", hovertext: kept.map((row) => plotText(row.text)),
      });
    }
  });
  const tall = wide ? 64 + 26 * rows : facets.length * (74 + 24 * rows);
  return { data: traces, layout: styled({ ...layout, annotations, shapes, margin: { l: 60, r: 10, t: 30, b: 30 }, dragmode: false }, Math.max(tall, 150)) };
}
