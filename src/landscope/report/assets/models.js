// The table of all models: sorted, searched and paged here, so that a thousand of them cost nothing until they are looked at.
// On paper it stands in parts of as many columns as a sheet has room for.
const PAGE = 25, ON_SHEET = 9;
function modelsTable() {
  const box = $("#model-table");
  if (!box) return;
  const state = { cohort: 0, by: null, down: true, page: 0, words: "" };
  const head = $("thead", box), body = $("tbody", box);
  const pages = make("span", {}), back = make("button", { type: "button", textContent: "‹ back" }), on = make("button", { type: "button", textContent: "next ›" });
  const find = make("input", { type: "search", placeholder: "condition or run", oninput: () => { state.words = find.value.toLowerCase(); state.page = 0; fill(); } });
  const bar = make("div", { className: "controls" }, make("label", {}, "find", find));
  if (cohorts.length > 1) {
    const select = make("select", { onchange: () => { state.cohort = Number(select.value); state.page = 0; fill(); } }, ...cohorts.map((c, place) => option(place, c.name, !place)));
    bar.append(make("label", {}, "models", select));
  }
  bar.append(back, on, pages);
  const paper = make("div", { className: "on-paper" });
  let sheets = () => [];
  addEventListener("beforeprint", () => paper.replaceChildren(...sheets()));
  addEventListener("afterprint", () => paper.replaceChildren());
  box.prepend(bar);
  $(".scroll", box).after(paper);
  back.onclick = () => { state.page -= 1; fill(); };
  on.onclick = () => { state.page += 1; fill(); };
  const columns = data.columns.filter((column) => cohorts.some((cohort) => cohort.values[column]));

  function fill() {
    const cohort = cohorts[state.cohort];
    let order = cohort.runs.map((run, place) => place).filter((place) => {
      const run = cohort.runs[place];
      return !state.words || `${runName(run)} ${runs[run].id}`.toLowerCase().includes(state.words);
    });
    if (state.by !== null) {
      const values = cohort.values[state.by] || [];
      const rank = (place) => (values[place] === null || values[place] === undefined ? Infinity : values[place] * (state.down ? 1 : -1));
      order = order.sort((a, b) => rank(a) - rank(b) || a - b);
    }
    const last = Math.max(0, Math.ceil(order.length / PAGE) - 1);
    state.page = Math.min(Math.max(state.page, 0), last);
    back.disabled = state.page === 0; on.disabled = state.page === last;
    back.hidden = on.hidden = last === 0;
    pages.textContent = `${order.length} model${order.length === 1 ? "" : "s"}${last ? `, page ${state.page + 1} of ${last + 1}` : ""}`;
    const decimals = Object.fromEntries(columns.map((column) => { // of a column alike, so that numbers can be compared down it
      const sizes = (cohort.values[column] || []).filter((v) => v !== null && v !== undefined).map(Math.abs), largest = Math.max(0, ...sizes);
      return [column, largest >= 1e-2 && largest < 1e5 ? Math.max(0, 3 - Math.floor(Math.log10(largest))) : null];
    }));
    const shown = (value, column) => (value === null || value === undefined || decimals[column] === null ? number(value) : value.toFixed(decimals[column]).replace("-", "−"));
    const heads = (some, onPaper) => make("tr", {}, make("th", { className: "text", textContent: "model" }), ...some.map((column) => {
      if (onPaper) return make("th", { textContent: labels[column] || column }); // a button would be missing where the head is repeated
      const arrow = state.by === column ? (state.down ? " ▴" : " ▾") : "";
      return make("th", { title: `${column}: sort` }, make("button", { type: "button", textContent: (labels[column] || column) + arrow, onclick: () => {
        state.down = state.by === column ? !state.down : true; state.by = column; fill();
      } }));
    }));
    const rows = (some) => order.slice(state.page * PAGE, (state.page + 1) * PAGE).map((place) => {
      const run = cohort.runs[place];
      const name = make("td", { title: `run ${runs[run].id}` }, mark(conditionOf(run)), make("span", { className: "value", textContent: runName(run) }));
      const row = make("tr", {}, name, ...some.map((column) => {
        const value = cohort.values[column] ? cohort.values[column][place] : null;
        return make("td", {}, make("span", { className: "value", textContent: shown(value, column) }));
      }));
      row.dataset.run = run;
      return row;
    });
    head.replaceChildren(heads(columns));
    body.replaceChildren(...rows(columns));
    const parts = columns.flatMap((_, start) => (start % ON_SHEET ? [] : [columns.slice(start, start + ON_SHEET)]));
    sheets = () => parts.map((some) => make("table", {}, make("thead", {}, heads(some, true)), make("tbody", {}, ...rows(some))));
    for (const row of all("tr[data-run]", box)) row.classList.toggle("lit", chosen.has(Number(row.dataset.run)));
  }
  fill();
  document.addEventListener("retheme", fill);
}
