import { drawHeat } from "/heat.js";

const PAUSE = 250; // milliseconds after the last key before a search
const $ = (id) => document.getElementById(id);
const state = { query: "", results: [], open: -1, word: null, explained: null, compared: null, request: null, zoom: false, shown: [] };
const CHOICES = ["anchorfold:0.2", "anchorfold:0.1", "anchorfold:0.05", "semantic-clustering:0.05", "sap:0.05", "1d-pooling:0.05", "none:1"];

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

async function ask(address, signal) {
  let answer;
  try {
    answer = await fetch(address, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is `anchorfold serve` still running?");
  }
  if (answer.ok) return answer.json();
  const body = await answer.json().catch(() => ({}));
  const why = typeof body.detail === "string" ? body.detail : `error ${answer.status}`;
  throw new Error(answer.status === 503 ? "The server is busy. Try again in a moment." : why);
}

function say(where, text, problem = false) {
  where.textContent = text;
  where.classList.toggle("problem", problem);
}

// The address holds the query and the open page, so that a result can be shared.
function address(push) {
  const parts = new URLSearchParams();
  if (state.query) parts.set("q", state.query);
  if (state.open >= 0) parts.set("page", state.results[state.open].id);
  const next = parts.size ? `/?${parts}` : "/";
  if (next !== location.pathname + location.search) history[push ? "pushState" : "replaceState"]({}, "", next);
}

async function search(query, push = true) {
  query = query.trim();
  state.query = query;
  state.request?.abort();
  $("empty").hidden = query !== "";
  document.title = query ? `${query} - AnchorFold` : "AnchorFold search";
  if (!query) {
    state.results = [];
    $("results").replaceChildren();
    say($("status"), "");
    address(push);
    return;
  }
  const request = new AbortController();
  state.request = request;
  $("results").classList.add("waiting");
  say($("status"), "Searching ...");
  try {
    const found = await ask(`/api/search?${new URLSearchParams({ q: query, top: 24 })}`, request.signal);
    state.results = found.results;
    show();
    address(push);
  } catch (error) {
    if (error.name === "AbortError") return;
    state.results = [];
    $("results").replaceChildren();
    say($("status"), error.message, true);
  } finally {
    if (state.request === request) $("results").classList.remove("waiting");
  }
}

function show() {
  const count = state.results.length;
  say($("status"), count ? `The ${count} best pages` : "No page matches. Try other words.");
  $("results").replaceChildren(...state.results.map((hit, number) => element("li", {},
    element("button", { class: "hit", type: "button", onclick: () => open(number) },
      element("span", { class: "sheet" }, element("img", { src: `/api/pages/${hit.id}/thumbnail`, alt: "", loading: "lazy" })),
      element("span", { class: "name", title: hit.document }, hit.document.split("/").pop()),
      element("span", { class: "folder" }, hit.document.split("/").slice(0, -1).join("/")),
      element("span", { class: "where" }, element("span", {}, `page ${hit.page}`), element("span", { title: "score" }, hit.score.toFixed(3)))))));
}

async function open(number, push = true) {
  const hit = state.results[number];
  Object.assign(state, { open: number, word: null, explained: null, compared: null });
  $("viewer-title").textContent = `${hit.document}, page ${hit.page}`;
  $("previous").disabled = number === 0;
  $("next").disabled = number === state.results.length - 1;
  $("words").replaceChildren();
  $("most").textContent = "";
  compareMode(false);
  say($("viewer-status"), "Looking for the evidence ...");
  panels([{ caption: null, explained: null }]);
  if (!$("viewer").open) $("viewer").showModal();
  address(push);
  try {
    const explained = await ask(`/api/pages/${hit.id}/evidence?${new URLSearchParams({ q: state.query })}`);
    if (state.open !== number) return;
    state.explained = explained;
    const times = (explained.full_vectors / Math.max(explained.vectors, 1)).toFixed(1);
    say($("viewer-status"), `Score ${explained.score.toFixed(3)}. ${explained.vectors} vectors stand for ${explained.full_vectors} patches, ${times} times fewer.`
      + (explained.original ? "" : " The original document is gone or has changed: this is its thumbnail."));
    $("compare").disabled = !explained.original;
    words();
    panels([{ caption: null, explained }]);
  } catch (error) {
    say($("viewer-status"), error.message, true);
  }
}

function words() {
  const choose = (number) => {
    state.word = number;
    for (const [i, button] of [...$("words").children].entries()) {
      const on = i === (number === null ? 0 : number + 1);
      button.setAttribute("aria-checked", on);
      button.tabIndex = on ? 0 : -1;
    }
    repaint();
  };
  const chip = (label, score, number) => element("button",
    { type: "button", role: "radio", "aria-checked": "false", onclick: () => choose(number) },
    label, " ", element("small", {}, score.toFixed(3)));
  const explained = state.explained;
  $("words").replaceChildren(chip("all words", explained.score, null), ...explained.words.map((w, i) => chip(w.word, w.score, i)));
  choose(null);
}

function top() {
  const all = state.compared ?? [state.explained];
  return Math.max(...all.map((e) => e.most), 1e-9);
}

function panels(list) {
  state.shown = list;
  const hit = state.results[state.open];
  const wide = list.length > 1 ? `${Math.floor(92 / list.length)}vw` : "92vw";
  const size = list.length > 1 ? 1000 : 1400;
  $("panels").replaceChildren(...list.map(({ caption, explained }) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    canvas.explained = explained;
    const image = element("img", { src: `/api/pages/${hit.id}/image?size=${size}`, alt: `Page ${hit.page} of ${hit.document}` });
    image.style.maxHeight = caption || state.zoom ? "none" : "calc(94vh - 13rem)";
    image.style.maxWidth = state.zoom ? "none" : `min(100%, ${wide})`;
    image.addEventListener("load", repaint);
    image.addEventListener("error", () => say($("viewer-status"), "The picture of this page cannot be shown.", true));
    return element("figure", { class: "panel" }, ...(caption ? [element("figcaption", {}, ...caption)] : []),
      element("div", { class: "sheet", onclick: zoom, title: "Click for full size, and back" }, image, canvas));
  }));
  repaint();
}

function zoom() {
  state.zoom = !state.zoom;
  $("zoom").setAttribute("aria-pressed", state.zoom);
  panels(state.shown);
}

function repaint() {
  for (const canvas of $("panels").querySelectorAll("canvas")) {
    if (canvas.explained && canvas.clientWidth) drawHeat(canvas, canvas.explained, state.word, top());
  }
  if (state.explained) $("most").textContent = `${top().toFixed(3)} of the score, a patch`;
}

function compareMode(on) {
  $("compare").setAttribute("aria-expanded", on);
  $("choices").hidden = !on;
  if (!on) state.compared = null;
}

async function compare() {
  const chosen = [...$("choices").querySelectorAll("input:checked")].map((i) => i.value);
  if (!chosen.length) return;
  const number = state.open;
  const hit = state.results[number];
  say($("viewer-status"), "Reading the original page again ...");
  const parts = new URLSearchParams({ q: state.query });
  for (const method of chosen) parts.append("method", method);
  try {
    const found = await ask(`/api/pages/${hit.id}/compare?${parts}`);
    if (state.open !== number) return;
    state.compared = found;
    say($("viewer-status"), "The same page and query; kept is the share of the full index's score.");
    panels(found.map((each) => ({
      caption: [element("b", {}, each.method === "none" ? "full index" : `${each.method} ${each.ratio}`),
        `  ${each.vectors} vectors, ${(each.kept ?? 100).toFixed(1)} % kept`],
      explained: each,
    })));
  } catch (error) {
    say($("viewer-status"), error.message, true);
  }
}

function closed() {
  const number = state.open;
  state.open = -1;
  address(true);
  $("results").children[number]?.querySelector("button").focus();
}

async function fromAddress() {
  const parts = new URLSearchParams(location.search);
  const query = parts.get("q") ?? "";
  $("query").value = query;
  if (query !== state.query || !state.results.length) await search(query, false);
  const wanted = state.results.findIndex((r) => r.id === parts.get("page"));
  if (wanted >= 0) open(wanted, false);
  else if ($("viewer").open) {
    state.open = -1;
    $("viewer").close();
  }
}

async function about() {
  try {
    const info = await ask("/api/info");
    const bytes = (n) => (n < 1e6 ? `${(n / 1e3).toFixed(0)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(1)} GB`);
    const count = (n) => n.toLocaleString("en");
    $("info").replaceChildren(
      element("span", {}, element("strong", {}, `${info.times_smaller.toFixed(1)} times smaller`), ` than the full index (${bytes(info.bytes - info.thumbnail_bytes)} on disk without pictures instead of ${bytes(info.full_vector_bytes)})`),
      element("span", {}, `${count(info.documents)} documents, ${count(info.pages)} pages`),
      element("span", {}, `${info.method} with ${info.model}`));
    $("info").hidden = false;
  } catch (error) {
    say($("status"), error.message, true);
  }
}

function dark() {
  const set = document.documentElement.dataset.theme;
  return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function theme(next) {
  if (next) {
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* a private window */ }
  }
  $("theme").setAttribute("aria-pressed", dark());
}

let pause;
$("query").addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(() => search($("query").value), PAUSE);
});
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(pause);
  search($("query").value);
});
$("theme").addEventListener("click", () => theme(dark() ? "light" : "dark"));
$("close").addEventListener("click", () => $("viewer").close());
$("viewer").addEventListener("close", () => { if (state.open >= 0) closed(); });
$("viewer").addEventListener("click", (event) => { if (event.target === $("viewer")) $("viewer").close(); });
$("previous").addEventListener("click", () => open(state.open - 1, false));
$("next").addEventListener("click", () => open(state.open + 1, false));
$("words").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  event.stopPropagation();
  const all = [...$("words").children];
  const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
  next.focus();
  next.click();
});
$("zoom").addEventListener("click", zoom);
$("compare").addEventListener("click", () => {
  const on = $("choices").hidden;
  compareMode(on);
  if (on) compare();
  else panels([{ caption: null, explained: state.explained }]);
});
$("choices").addEventListener("change", (event) => {
  const checked = $("choices").querySelectorAll("input:checked");
  if (checked.length > 3) event.target.checked = false;
  else compare();
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    if (!$("viewer").open) $("query").focus();
  } else if ($("viewer").open && !typing) {
    if (event.key === "z") zoom();
    if (event.key === "ArrowLeft" && state.open > 0) open(state.open - 1, false);
    if (event.key === "ArrowRight" && state.open < state.results.length - 1) open(state.open + 1, false);
  } else if (event.key === "ArrowDown" && typing && !$("viewer").open) {
    event.preventDefault();
    $("results").querySelector("button")?.focus();
  }
});
addEventListener("popstate", fromAddress);
addEventListener("resize", repaint);

$("choices").append(...CHOICES.map((choice, i) => {
  const [method, ratio] = choice.split(":");
  const box = element("input", { type: "checkbox", value: choice });
  box.checked = i === 0 || i === 2 || i === 3;
  return element("label", {}, box, method === "none" ? " full index" : ` ${method} ${ratio}`);
}));
let saved = null;
try { saved = localStorage.getItem("theme"); } catch { /* a private window */ }
theme(saved);
about();
fromAddress();
