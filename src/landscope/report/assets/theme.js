// Colours: eight that every kind of colour vision tells apart, for light and for dark; conditions also differ by symbol.
const PALETTES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#c2589b", "#d99000", "#46a5dc", "#6f4e9c", "#6d7278"],
  dark: ["#4da6e0", "#ff8b4a", "#2cc79b", "#e79bc6", "#f5be4b", "#8fd0f7", "#b39ae0", "#b0b5ba"],
};
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "hexagon", "star"];
const DIM = 0.1;
let printing = false;
const asked = () => document.documentElement.dataset.theme;
const theme = () => {
  if (printing) return "light";
  return asked() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
};
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const conditionColour = (number) => PALETTES[theme()][number % 8];
const conditionSymbol = (number) => SYMBOLS[(number + Math.floor(number / 8)) % 8];
const colour = (token) => {
  const found = /^@(?:c(\d+)|(\w+))$/.exec(token);
  if (!found) return token;
  return found[1] === undefined ? css(found[2]) : conditionColour(Number(found[1]));
};
const COLOURS = new Set(["color", "fillcolor", "bgcolor", "bordercolor"]);
const themed = (value, key = "") => {
  if (Array.isArray(value)) return value.map((item) => themed(item, key));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([k, item]) => [k, themed(item, k)]));
  }
  return typeof value === "string" && COLOURS.has(key) ? colour(value) : value;
};
