// Figures are drawn when they come near the window, and all of them before printing.
const LETTER = 6.2, SLANT = 60, NUMBER = 36; // pixels of a letter beside a heat map, of the last name above it, of a number in it
const plain = (spec, height, width) => {
  const square = spec.layout && spec.layout.yaxis && spec.layout.yaxis.scaleanchor; // no higher than it is wide: nothing would stand there
  const drawing = { data: themed(spec.data), layout: styled(themed(spec.layout || {}), square ? Math.min(height, width) : height) };
  for (const trace of drawing.data) {
    if (!trace.texttemplate) continue;
    const names = LETTER * Math.max(...trace.y.map((name) => name.length));
    if ((width - names - SLANT) / trace.x.length < NUMBER) delete trace.texttemplate; // no room for numbers
  }
  return drawing;
};
const KINDS = { plain, scatter, explorer: scatter, forest };

const figures = all("figure.plot").map((element) => {
  const key = element.dataset.plot;
  return { key, element, canvas: $(".canvas", element), controls: $(".controls", element), parts: [], drawn: false, ...plots[key], spec: { ...plots[key].spec } };
});

async function place(holder, drawing) {
  const layout = printing ? { ...drawing.layout, width: holder.clientWidth } : drawing.layout; // a sheet has its own width
  await Plotly.react(holder, drawing.data, layout, CONFIG);
  if (!holder.dataset.listening) {
    holder.dataset.listening = "yes";
    holder.on("plotly_click", (event) => {
      const hit = runsOf(event.points[0]);
      if (hit.length) choose(hit, event.event && (event.event.shiftKey || event.event.ctrlKey || event.event.metaKey));
    });
  }
}

async function draw(figure) {
  figure.drawn = true;
  if (figure.kind === "landscape") await drawLandscape(figure);
  else {
    if (!figure.parts.length) figure.parts = [figure.canvas];
    const drawing = KINDS[figure.kind](figure.spec, figure.height, figure.canvas.clientWidth);
    if (figure.kind === "plain") figure.canvas.style.setProperty("--height", `${drawing.layout.height}px`);
    await place(figure.canvas, drawing);
  }
  light(figure);
}

async function drawLandscape(figure) {
  const model = figure.spec.models[figure.spec.chosen || 0];
  const parts = landscapeParts(figure.spec, model, figure.height);
  if (figure.parts.length !== parts.length) {
    figure.canvas.classList.add("grid");
    figure.parts.forEach((part) => Plotly.purge(part));
    figure.parts = parts.map((part) => {
      const holder = make("div", { className: "hold" });
      figure.canvas.append(make("div", { className: "part" }, make("h3", { textContent: "" }), holder));
      return holder;
    });
  }
  await Promise.all(parts.map((part, index) => {
    const holder = figure.parts[index];
    holder.previousSibling.textContent = part.name;
    if (!part.needsWebgl || webgl) return place(holder, part);
    return holder.replaceChildren(make("div", { className: "missing", textContent: "The surface needs WebGL, which this browser does not offer." }));
  }));
}

const waiting = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    waiting.unobserve(entry.target);
    const figure = figures.find((f) => f.element === entry.target);
    if (!figure.drawn) draw(figure);
  }
}, { rootMargin: "600px" });

const redraw = () => Promise.all(figures.filter((figure) => figure.drawn).map(draw));
