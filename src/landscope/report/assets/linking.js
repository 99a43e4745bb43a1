// A model chosen anywhere lights up everywhere.
let chosen = new Set();

function runsOf(point) {
  const meta = point.data.meta || {};
  if (meta.runs) return [meta.runs[point.pointNumber]];
  if (meta.run !== undefined) return [meta.run];
  if (meta.condition !== undefined) return runs.flatMap((run, place) => (run.condition === meta.condition ? [place] : []));
  return [];
}

function choose(hit, adding = false) {
  const same = hit.length === chosen.size && hit.every((run) => chosen.has(run));
  if (adding) {
    const inside = hit.every((run) => chosen.has(run));
    for (const run of hit) if (inside) chosen.delete(run); else chosen.add(run);
  } else chosen = new Set(same ? [] : hit);
  for (const figure of figures) {
    if (figure.kind === "landscape" && chosen.size === 1) follow(figure, [...chosen][0]);
    if (figure.drawn) light(figure);
  }
  lightPage();
}

function follow(figure, run) {
  const place = figure.spec.models.findIndex((model) => model.run === run);
  if (place < 0 || place === (figure.spec.chosen || 0)) return;
  figure.spec.chosen = place;
  $("select", figure.controls).value = String(place);
  if (figure.drawn) draw(figure);
}

// Axes stay where they are when bars come and go.
const still = (holder) => Object.fromEntries(["xaxis", "yaxis"].flatMap((key) => (holder.layout[key].range ? [[`${key}.range`, [...holder.layout[key].range]]] : [])));

function light(figure) {
  const any = chosen.size > 0;
  if (!any && !figure.lit) return;
  figure.lit = any;
  for (const holder of figure.parts) {
    if (!holder.data) continue;
    const bars = { at: [], x: [], y: [] }, points = { at: [], selectedpoints: [] }, lines = { at: [], opacity: [], width: [] }, others = { at: [], opacity: [] };
    holder.data.forEach((trace, index) => {
      const meta = trace.meta || {};
      if (meta.runs) {
        const lit = meta.runs.flatMap((run, place) => (chosen.has(run) ? [place] : []));
        points.at.push(index); points.selectedpoints.push(any ? lit : null);
        if (meta.ex) {
          bars.at.push(index);
          for (const [key, values] of [["x", meta.ex], ["y", meta.ey]]) bars[key].push(values.map((v, place) => (!any || chosen.has(meta.runs[place]) ? v : 0)));
        }
      } else if (meta.run !== undefined) {
        meta.opacity ??= trace.opacity ?? 1; meta.width ??= trace.line.width;
        const on = chosen.has(meta.run);
        lines.at.push(index); lines.opacity.push(any ? (on ? 1 : DIM) : meta.opacity); lines.width.push(any && on ? 3 : meta.width);
      } else if (meta.condition !== undefined) {
        const on = [...chosen].some((run) => conditionOf(run) === meta.condition);
        others.at.push(index); others.opacity.push(any && !on ? DIM * 2 : 1);
      }
    });
    if (bars.at.length) Plotly.update(holder, { "error_x.array": bars.x, "error_y.array": bars.y }, still(holder), bars.at);
    if (points.at.length) Plotly.restyle(holder, { selectedpoints: points.selectedpoints }, points.at);
    if (lines.at.length) Plotly.restyle(holder, { opacity: lines.opacity, "line.width": lines.width }, lines.at);
    if (others.at.length) Plotly.restyle(holder, { opacity: others.opacity }, others.at);
  }
}

function lightPage() {
  const touched = new Set([...chosen].map(conditionOf));
  for (const row of all("tr[data-run]")) row.classList.toggle("lit", chosen.has(Number(row.dataset.run)));
  for (const row of all("tr[data-condition]")) row.classList.toggle("lit", touched.has(Number(row.dataset.condition)));
  for (const head of all("th[data-condition]")) {
    const on = touched.has(Number(head.dataset.condition)), place = head.cellIndex;
    for (const row of head.closest("table").rows) row.cells[place].classList.toggle("lit", on);
  }
  for (const chip of all("#legend button")) {
    const members = runs.flatMap((run, place) => (run.condition === Number(chip.dataset.condition) ? [place] : []));
    chip.setAttribute("aria-pressed", String(members.length > 0 && members.every((run) => chosen.has(run))));
  }
  $("#clear").hidden = chosen.size === 0;
  const names = [...chosen].slice(0, 3).map(runName).join(", ");
  say(chosen.size ? `${chosen.size} model${chosen.size > 1 ? "s" : ""}: ${names}${chosen.size > 3 ? ", …" : ""}` : "");
  const kept = chosen.size && chosen.size <= 20 ? `#runs=${[...chosen].map((run) => encodeURIComponent(runs[run].id)).join(",")}` : "";
  if (location.hash.startsWith("#runs=") || kept) history.replaceState(null, "", kept || location.pathname + location.search);
}

let silence = 0;
function say(text) {
  const status = $("#status");
  status.textContent = text;
  status.classList.toggle("shown", Boolean(text));
  clearTimeout(silence);
  if (text) silence = setTimeout(() => status.classList.remove("shown"), 4000);
}
