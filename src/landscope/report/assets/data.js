// The data of the page, and the few helpers that everything uses.
// Text from users reaches the page by textContent only, and Plotly only with its few tags escaped.
const $ = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, fields = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
};
const plotText = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const data = JSON.parse($("#data").textContent);
const { conditions, runs, labels, cohorts, plots } = data;
const conditionOf = (run) => runs[run].condition;
const runName = (run) => `${conditions[conditionOf(run)]} · seed ${runs[run].seed}`;
