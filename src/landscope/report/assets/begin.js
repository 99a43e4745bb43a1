// Put it all together.
function begin() {
  legend();
  controls();
  modelsTable();
  for (const button of all("[data-file]")) button.onclick = () => download(button.dataset.file);
  document.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-run], tr[data-condition], th[data-condition]");
    if (!row) return;
    const adding = event.shiftKey || event.ctrlKey || event.metaKey;
    if (row.dataset.run !== undefined) choose([Number(row.dataset.run)], adding);
    else choose(runs.flatMap((run, place) => (run.condition === Number(row.dataset.condition) ? [place] : [])), adding);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") choose([]); });
  $("#clear").onclick = () => choose([]);
  $("#theme").onclick = () => {
    document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
    document.dispatchEvent(new Event("retheme"));
    retheme();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (!asked()) { document.dispatchEvent(new Event("retheme")); retheme(); } });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (Math.abs(innerWidth - width) < 40) return;
    width = innerWidth;
    figures.filter((figure) => figure.drawn && figure.kind === "forest").forEach(draw);
  });
  const print = (begins) => () => {
    printing = begins;
    document.documentElement.classList.toggle("printing", begins);
    (begins ? figures : figures.filter((figure) => figure.drawn)).forEach((figure) => draw(figure));
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  const sections = all("main section");
  const spy = new IntersectionObserver(() => {
    const reached = sections.filter((section) => section.getBoundingClientRect().top < innerHeight * 0.3).pop();
    for (const link of all(".contents a")) {
      if (reached && link.hash === `#${reached.id}`) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "0px 0px -70% 0px" });
  sections.forEach((section) => spy.observe(section));
  figures.forEach((figure) => waiting.observe(figure.element));
  const wanted = /^#runs=(.+)$/.exec(location.hash);
  if (wanted) {
    const ids = new Set(wanted[1].split(",").map(decodeURIComponent));
    const hit = runs.flatMap((run, place) => (ids.has(run.id) ? [place] : []));
    if (hit.length) choose(hit);
  }
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
else begin();
