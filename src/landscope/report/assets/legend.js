// The legend that all figures share, and the controls of single figures.
const MARKS = { circle: "M6 1a5 5 0 1 0 .01 0z", square: "M1.5 1.5h9v9h-9z", diamond: "M6 0l6 6-6 6-6-6z", "triangle-up": "M6 1l5.5 10H.5z", cross: "M4 0h4v4h4v4H8v4H4V8H0V4h4z",
  "triangle-down": "M6 11L.5 1h11z", hexagon: "M6 0l5.2 3v6L6 12 .8 9V3z", star: "M6 0l1.8 4.1 4.2.4-3.2 2.9 1 4.3L6 9.4l-3.8 2.3 1-4.3L0 4.5l4.2-.4z" };
function mark(condition) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg"), path = document.createElementNS(space, "path");
  for (const [key, value] of Object.entries({ width: 10, height: 10, viewBox: "0 0 12 12", "aria-hidden": "true" })) svg.setAttribute(key, value);
  path.setAttribute("d", MARKS[conditionSymbol(condition)]);
  path.setAttribute("fill", conditionColour(condition));
  svg.append(path);
  svg.style.marginRight = "0.4em";
  return svg;
}

function legend() {
  const chips = conditions.map((name, condition) => {
    const chip = make("button", { type: "button", title: `Light up all models of ${name}`, onclick: (event) =>
      choose(runs.flatMap((run, place) => (run.condition === condition ? [place] : [])), event.shiftKey || event.ctrlKey || event.metaKey) },
      mark(condition), make("span", { className: "name", textContent: name }));
    chip.dataset.condition = condition;
    return chip;
  });
  $("#legend").replaceChildren(...chips);
  for (const swatch of all(".swatch")) swatch.style.setProperty("--swatch", conditionColour(Number(swatch.dataset.condition)));
}

const option = (value, text, selected) => make("option", { value, textContent: text, selected });
function control(figure, title, options, change) {
  const select = make("select", {}, ...options);
  select.onchange = () => change(select.value);
  figure.controls.hidden = false;
  figure.controls.append(make("label", {}, title, select));
}

function controls() {
  for (const figure of figures) {
    const again = () => figure.drawn && draw(figure);
    if (figure.kind === "explorer") {
      const columns = Object.keys(cohorts[0].values);
      for (const [axis, title] of [["x", "across"], ["y", "up"]]) {
        control(figure, title, columns.map((c) => option(c, labels[c] || c, c === figure.spec[axis])), (value) => { figure.spec[axis] = value; again(); });
      }
      if (cohorts.length > 1) {
        control(figure, "models", cohorts.map((c, place) => option(place, c.name, !place)), (value) => {
          const known = cohorts[Number(value)].values;
          for (const axis of ["x", "y"]) if (!known[figure.spec[axis]]) return say(`${cohorts[Number(value)].name}: no ${labels[figure.spec[axis]] || figure.spec[axis]}`);
          figure.spec.cohort = Number(value);
          return again();
        });
      }
    } else if (figure.kind === "landscape") {
      control(figure, "model", figure.spec.models.map((model, place) => option(place, runName(model.run), !place)), (value) => { figure.spec.chosen = Number(value); again(); });
    }
  }
}

function retheme() {
  legend();
  lightPage();
  return redraw();
}
