import { drawHeat } from "/heat.js";
import { fromAddress, showFilters, toAddress, whereOf } from "/filters.js";
import { drawMarks, savedMode, showModes, sides, snippet } from "/text.js";

const TYPING_PAUSE = 250; // milliseconds after the last key before a search
const $ = (id) => document.getElementById(id);
const state = { query: "", results: [], open: -1, word: null, explained: null, compared: null, request: null, zoom: false, shown: [], info: null, chosen: {}, facets: [], mode: null, marks: [] };
const MOST_METHODS = 3;

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

async function fetchJson(address, signal) {
  let response;
  try {
    response = await fetch(address, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is `anchorfold serve` still running?");
  }
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({}));
  const reason = typeof body.detail === "string" ? body.detail : `error ${response.status}`;
  throw new Error(response.status === 503 ? "The server is busy. Try again in a moment." : reason);
}

function showMessage(target, text, problem = false) {
  target.textContent = text;
  target.classList.toggle("problem", problem);
}

// The address holds the query and the open page, so that a result can be shared.
function updateAddress(push) {
  const parts = new URLSearchParams();
  if (state.query) parts.set("q", state.query);
  if (toAddress(state.chosen)) parts.set("filter", toAddress(state.chosen));
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
    showMessage($("status"), "");
    updateAddress(push);
    return;
  }
  const request = new AbortController();
  state.request = request;
  $("results").classList.add("waiting");
  showMessage($("status"), "Searching ...");
  try {
    await state.info; // it knows which modes there are
    const parts = new URLSearchParams({ q: query, top: 24 });
    if (whereOf(state.chosen)) parts.set("where", whereOf(state.chosen));
    if (state.mode) parts.set("mode", state.mode);
    const answer = await fetchJson(`/api/search?${parts}`, request.signal);
    state.results = answer.results;
    showResults(answer.searched);
    updateAddress(push);
  } catch (error) {
    if (error.name === "AbortError") return;
    state.results = [];
    $("results").replaceChildren();
    showMessage($("status"), error.message, true);
  } finally {
    if (state.request === request) $("results").classList.remove("waiting");
  }
}

function showResults(searched) {
  const count = state.results.length;
  const part = searched < 1 ? ` (of ${Math.floor(100 * searched)} % of the index: the rest does not answer now)` : "";
  const nothing = whereOf(state.chosen) ? "No page matches. Try other words or filters." : "No page matches. Try other words.";
  showMessage($("status"), (count ? `The ${count} best pages` : nothing) + part);
  $("results").replaceChildren(...state.results.map((hit, number) => element("li", {},
    element("button", { class: "hit", type: "button", onclick: () => openPage(number) },
      element("span", { class: "sheet" }, element("img", { src: `/api/pages/${hit.id}/thumbnail`, alt: "", loading: "lazy" })),
      element("span", { class: "name", title: hit.document }, hit.document.split("/").pop()),
      element("span", { class: "folder" }, hit.document.split("/").slice(0, -1).join("/")),
      ...(hit.snippet ? [snippet(hit)] : []),
      element("span", { class: "where" }, element("span", {}, `page ${hit.page}`), element("span", { title: sides(hit) }, hit.score.toFixed(3)))))));
}

async function openPage(number, push = true) {
  const hit = state.results[number];
  Object.assign(state, { open: number, word: null, explained: null, compared: null, marks: [] });
  showMarks(number);
  $("viewer-title").textContent = `${hit.document}, page ${hit.page}`;
  $("previous").disabled = number === 0;
  $("next").disabled = number === state.results.length - 1;
  $("words").replaceChildren();
  $("most").textContent = "";
  setComparing(false);
  showMessage($("viewer-status"), "Looking for the evidence ...");
  showPanels([{ caption: null, explained: null }]);
  if (!$("viewer").open) $("viewer").showModal();
  updateAddress(push);
  try {
    const explained = await fetchJson(`/api/pages/${hit.id}/evidence?${new URLSearchParams({ q: state.query })}`);
    if (state.open !== number) return;
    state.explained = explained;
    const times = (explained.full_vectors / Math.max(explained.vectors, 1)).toFixed(1);
    showMessage($("viewer-status"), `Score ${explained.score.toFixed(3)}. ${explained.vectors} vectors stand for ${explained.full_vectors} patches, ${times} times fewer.`
      + (explained.original ? "" : " The original document is gone or has changed: this is its thumbnail."));
    $("compare").disabled = !explained.original;
    showWords();
    showPanels([{ caption: null, explained }]);
  } catch (error) {
    showMessage($("viewer-status"), error.message, true);
  }
}

// Where the words stand, if the search was for words too; the page is worth looking at without.
async function showMarks(number) {
  const hit = state.results[number];
  if (!hit.text) return;
  const words = await fetchJson(`/api/pages/${hit.id}/words?${new URLSearchParams({ q: state.query })}`).catch(() => ({ boxes: [] }));
  if (state.open !== number) return;
  state.marks = words.boxes;
  repaint();
}

function showWords() {
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

function scaleTop() {
  const all = state.compared ?? [state.explained];
  return Math.max(...all.map((e) => e.most), 1e-9);
}

function showPanels(list) {
  state.shown = list;
  const hit = state.results[state.open];
  const wide = list.length > 1 ? `${Math.floor(92 / list.length)}vw` : "92vw";
  const size = list.length > 1 ? 1000 : 1400;
  $("panels").replaceChildren(...list.map(({ caption, colour, explained }) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    canvas.explained = explained;
    const image = element("img", { src: `/api/pages/${hit.id}/image?size=${size}`, alt: `Page ${hit.page} of ${hit.document}` });
    image.style.maxHeight = caption || state.zoom ? "none" : "calc(94vh - 13rem)";
    image.style.maxWidth = state.zoom ? "none" : `min(100%, ${wide})`;
    image.addEventListener("load", repaint);
    image.addEventListener("error", () => showMessage($("viewer-status"), "The picture of this page cannot be shown.", true));
    const heading = element("figcaption", {}, ...(caption ?? []));
    heading.style.borderColor = colour ?? "";
    return element("figure", { class: "panel" }, ...(caption ? [heading] : []),
      element("div", { class: "sheet", onclick: toggleZoom, title: "Click for full size, and back" }, image, canvas));
  }));
  repaint();
}

function toggleZoom() {
  state.zoom = !state.zoom;
  $("zoom").setAttribute("aria-pressed", state.zoom);
  showPanels(state.shown);
}

function repaint() {
  for (const canvas of $("panels").querySelectorAll("canvas")) {
    if (canvas.explained && canvas.clientWidth) {
      drawHeat(canvas, canvas.explained, state.word, scaleTop());
      drawMarks(canvas, state.marks);
    }
  }
  if (state.explained) $("most").textContent = `${scaleTop().toFixed(3)} of the score, a patch`;
}

function setComparing(on) {
  $("compare").setAttribute("aria-expanded", on);
  $("choices").hidden = !on;
  if (!on) state.compared = null;
}

async function showComparison() {
  await state.info; // it brings the methods to choose from
  const chosen = [...$("choices").querySelectorAll("input:checked")].map((i) => i.value);
  if (!chosen.length) return;
  const number = state.open;
  const hit = state.results[number];
  showMessage($("viewer-status"), "Reading the original page again ...");
  const parts = new URLSearchParams({ q: state.query });
  for (const method of chosen) parts.append("method", method);
  try {
    const compared = await fetchJson(`/api/pages/${hit.id}/compare?${parts}`);
    if (state.open !== number) return;
    state.compared = compared;
    showMessage($("viewer-status"), "The same page and query; the percentage is the share of the full index's score.");
    showPanels(compared.map((explained) => ({
      caption: [element("b", {}, explained.title), `  ${explained.vectors} vectors, ${(explained.retention ?? 100).toFixed(1)} %`],
      colour: explained.colour,
      explained,
    })));
  } catch (error) {
    showMessage($("viewer-status"), error.message, true);
  }
}

function viewerClosed() {
  const number = state.open;
  state.open = -1;
  updateAddress(true);
  $("results").children[number]?.querySelector("button").focus();
}

async function readAddress() {
  const parts = new URLSearchParams(location.search);
  const query = parts.get("q") ?? "";
  $("query").value = query;
  const chosen = fromAddress(parts.get("filter"));
  const filtered = toAddress(chosen) !== toAddress(state.chosen);
  if (filtered) chooseFilters(chosen);
  if (filtered || query !== state.query || !state.results.length) await search(query, false);
  const number = state.results.findIndex((r) => r.id === parts.get("page"));
  if (number >= 0) openPage(number, false);
  else if ($("viewer").open) {
    state.open = -1;
    $("viewer").close();
  }
}

async function showInfo() {
  try {
    const info = await fetchJson("/api/info");
    state.mode = savedMode(info.modes);
    showModes($("mode"), info.modes, state.mode, (mode) => {
      state.mode = mode;
      if (state.query) search(state.query, false);
    });
    const bytes = (n) => (n < 1e6 ? `${(n / 1e3).toFixed(0)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(1)} GB`);
    const count = (n) => n.toLocaleString("en");
    $("info").replaceChildren(
      element("span", {}, element("strong", {}, `${info.times_smaller.toFixed(1)} times smaller`), ` than the full index (${bytes(info.bytes - info.thumbnail_bytes - info.text_bytes)} on disk without pictures and text instead of ${bytes(info.full_vector_bytes)})`),
      element("span", {}, `${count(info.documents)} documents, ${count(info.pages)} pages`),
      element("span", {}, `${info.method} with ${info.model}`));
    $("info").hidden = false;
    showChoices(info.choices);
  } catch (error) {
    showMessage($("status"), error.message, true);
  }
}

function chooseFilters(chosen) {
  state.chosen = chosen;
  showFilters($("filters"), state.facets, chosen, (next) => {
    state.chosen = next;
    search($("query").value);
  });
}

async function showFacets() {
  try {
    state.facets = (await fetchJson("/api/facets")).facets;
    chooseFilters(state.chosen);
  } catch (error) {
    showMessage($("status"), error.message, true);
  }
}

function showChoices(choices) {
  $("choices").append(...choices.map(({ method, title, first }) => {
    const box = element("input", { type: "checkbox", value: method });
    box.checked = first;
    return element("label", {}, box, ` ${title}`);
  }));
}

function isDark() {
  const set = document.documentElement.dataset.theme;
  return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(next) {
  if (next) {
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* a private window */ }
  }
  $("theme").setAttribute("aria-pressed", isDark());
}

let typing;
$("query").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => search($("query").value), TYPING_PAUSE);
});
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  search($("query").value);
});
$("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
$("close").addEventListener("click", () => $("viewer").close());
$("viewer").addEventListener("close", () => { if (state.open >= 0) viewerClosed(); });
$("viewer").addEventListener("click", (event) => { if (event.target === $("viewer")) $("viewer").close(); });
$("previous").addEventListener("click", () => openPage(state.open - 1, false));
$("next").addEventListener("click", () => openPage(state.open + 1, false));
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
$("zoom").addEventListener("click", toggleZoom);
$("compare").addEventListener("click", () => {
  const on = $("choices").hidden;
  setComparing(on);
  if (on) showComparison();
  else showPanels([{ caption: null, explained: state.explained }]);
});
$("choices").addEventListener("change", (event) => {
  const checked = $("choices").querySelectorAll("input:checked");
  if (checked.length > MOST_METHODS) event.target.checked = false;
  else showComparison();
});
document.addEventListener("keydown", (event) => {
  const inField = event.target.matches("input:not([type=radio])");
  if (event.key === "/" && !inField) {
    event.preventDefault();
    if (!$("viewer").open) $("query").focus();
  } else if ($("viewer").open && !inField) {
    if (event.key === "z") toggleZoom();
    if (event.key === "ArrowLeft" && state.open > 0) openPage(state.open - 1, false);
    if (event.key === "ArrowRight" && state.open < state.results.length - 1) openPage(state.open + 1, false);
  } else if (event.key === "ArrowDown" && inField && !$("viewer").open) {
    event.preventDefault();
    $("results").querySelector("button")?.focus();
  }
});
addEventListener("popstate", readAddress);
addEventListener("resize", repaint);

let saved = null;
try { saved = localStorage.getItem("theme"); } catch { /* a private window */ }
setTheme(saved);
state.info = showInfo();
readAddress();
showFacets();
