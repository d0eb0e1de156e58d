import { drawHeatmap } from "/heatmap.js";
import { fromUrl, showFilters, toUrl, whereClause } from "/filters.js";
import { drawBoxes, savedMode, scoreLabels, showModes, snippet } from "/text.js";

const TYPING_DELAY = 250; // milliseconds between the last key and a search
const $ = (id) => document.getElementById(id);
const MAX_METHODS = 3;
const RESULTS = 24, MAX_RESULTS = 100;
const state = { query: "", like: null, count: RESULTS, results: [], searched: null, typing: false, open: -1, last: -1, shown: null, word: null, evidence: null, comparison: null, request: null, zoom: false, panels: [], info: null, filters: {}, facets: [], modes: [], mode: null, boxes: [] };

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

async function fetchJson(url, signal) {
  let response;
  try {
    response = await fetch(url, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw Object.assign(new Error("Cannot reach the server. Is `anchorfold serve` still running?"), { retry: true });
  }
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({}));
  const reason = typeof body.detail === "string" ? body.detail : `error ${response.status}`;
  const busy = response.status === 503;
  throw Object.assign(new Error(busy ? "The server is busy. Try again in a moment." : reason), { retry: response.status >= 500 });
}

function showMessage(target, text, problem = false) {
  target.textContent = text;
  target.classList.toggle("problem", problem);
}

// The search as URL parameters.
function searchParameters() {
  const parts = new URLSearchParams();
  if (state.query) parts.set("q", state.query);
  if (state.like) return new URLSearchParams({ like: state.like }); // the other parameters have no effect
  if (state.query && state.mode && state.mode !== state.modes[0]) parts.set("mode", state.mode);
  if ($("per-document").checked) parts.set("per_document", "true");
  if (toUrl(state.filters)) parts.set("filter", toUrl(state.filters));
  return parts;
}

// Store the search and the open page in the URL, so that results can be shared.
function updateUrl(push) {
  const parts = searchParameters();
  if (state.shown) parts.set("page", state.shown.id);
  const next = parts.size ? `/?${parts}` : "/";
  if (next !== location.pathname + location.search) history[push ? "pushState" : "replaceState"]({}, "", next);
}

async function search(query, push = true, like = null, count = RESULTS) {
  query = query.trim();
  Object.assign(state, { query, like, count, searched: null });
  state.request?.abort();
  $("empty").hidden = query !== "" || like !== null;
  document.title = query ? `${query} - AnchorFold` : "AnchorFold search";
  document.body.classList.toggle("similar", like !== null); // hides the options of searches
  if (!query && !like) {
    state.request = null;
    $("more").hidden = $("per-document-label").hidden = true;
    Object.assign(state, { results: [], searched: "" });
    $("results").replaceChildren();
    showMessage($("status"), "");
    updateUrl(push);
    return;
  }
  const request = new AbortController();
  state.request = request;
  $("results").classList.add("waiting");
  showMessage($("status"), "Searching ...");
  try {
    await state.info; // contains the supported modes
    if (like) {
      const path = `/api/pages/${encodeURIComponent(like)}`;
      const [page, results] = await Promise.all([fetchJson(path, request.signal), fetchJson(`${path}/similar?top_k=${count}`, request.signal)]);
      state.results = results;
      showResults(`${results.length} pages similar to ${page.document}, page ${page.page}`);
      updateUrl(push);
      return;
    }
    const parts = new URLSearchParams({ q: query, top_k: count });
    if ($("per-document").checked) parts.set("per_document", "true");
    if (whereClause(state.filters)) parts.set("where", whereClause(state.filters));
    if (state.mode) parts.set("mode", state.mode);
    const response = await fetchJson(`/api/search?${parts}`, request.signal);
    state.results = response.results;
    const partial = response.searched < 1 ? ` (partial: ${Math.floor(100 * response.searched)} % of the index was searched)` : "";
    const nothing = whereClause(state.filters) ? "No results. Try other words or filters." : "No results. Try other words.";
    const shown = state.results.length;
    const heading = response.weak ? `No strong match. Closest pages: ${shown}` : `Top ${shown} results`;
    showResults((shown ? heading : nothing) + partial);
    updateUrl(push);
  } catch (error) {
    if (error.name === "AbortError") return;
    // Results of the last search stay visible.
    showMessage($("status"), error.message, true);
    if (error.retry) $("status").append(" ", element("button", { type: "button", onclick: () => search(query, push, like, count) }, "Retry"));
  } finally {
    if (state.request === request) $("results").classList.remove("waiting");
  }
}

function showResults(heading) {
  state.searched = searchParameters().toString();
  if (state.count === RESULTS) scrollTo(0, 0); // not after "More results"
  showMessage($("status"), heading);
  $("more").hidden = state.results.length < state.count || state.count >= MAX_RESULTS;
  $("per-document-label").hidden = false;
  $("results").replaceChildren(...state.results.map((hit, number) => element("li", {},
    element("button", { class: "hit", type: "button", onclick: () => openPage(number) },
      element("span", { class: "sheet" }, element("img", { src: `/api/pages/${hit.id}/thumbnail`, alt: "", loading: "lazy" })),
      element("span", { class: "name", title: hit.document }, hit.document.split("/").pop()),
      element("span", { class: "folder" }, hit.document.split("/").slice(0, -1).join("/")),
      ...(hit.snippet ? [snippet(hit)] : []),
      element("span", { class: "where" }, element("span", {}, `page ${hit.page}`), element("span", { class: "score", title: scoreLabels(hit).join(", ") }, scoreLabels(hit)[0]))))));
}

function sentence(parts) {
  const text = parts.join(", ");
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function openPage(number, push = true) {
  return showPage(state.results[number], number, push);
}

// Show a page: a result with its number, or another page with the number -1.
async function showPage(hit, number, push = true) {
  Object.assign(state, { open: number, shown: hit, word: null, evidence: null, comparison: null, boxes: [] });
  if (number >= 0) state.last = number;
  loadBoxes(hit);
  loadLinks(hit);
  $("viewer-title").textContent = `${hit.document}, page ${hit.page}`;
  $("previous").disabled = number <= 0;
  $("next").disabled = number < 0 || number === state.results.length - 1;
  $("words").replaceChildren();
  $("maximum").textContent = "";
  setComparing(false);
  $("compare").disabled = !state.query;
  showMessage($("viewer-status"), state.query ? "Loading the heatmap ..." : "");
  showPanels([{ caption: null, evidence: null }]);
  if (!$("viewer").open) $("viewer").showModal();
  updateUrl(push);
  if (!state.query) return; // similar pages: there is no query to explain
  try {
    const evidence = await fetchJson(`/api/pages/${hit.id}/evidence?${new URLSearchParams({ q: state.query })}`);
    if (state.shown !== hit) return;
    state.evidence = evidence;
    evidence.score = hit.visual ?? evidence.score; // the number on the result card, to the last digit
    const labels = number < 0 ? [] : scoreLabels(hit);
    if (hit.visual === null) labels.push(`visual score ${evidence.score.toFixed(3)}`);
    const ratio = (evidence.full_vectors / Math.max(evidence.vectors, 1)).toFixed(1);
    showMessage($("viewer-status"), `${sentence(labels)} ${evidence.vectors} vectors for ${evidence.full_vectors} patches (compression ratio ${ratio}).`
      + (evidence.original ? "" : " The original document was deleted or changed: showing its thumbnail."));
    $("compare").disabled = !evidence.original;
    showWords();
    showPanels([{ caption: null, evidence }]);
  } catch (error) {
    showMessage($("viewer-status"), error.message, true);
  }
}

// Frame matching words of text and hybrid searches; on errors the page is shown without frames.
async function loadBoxes(hit) {
  if (!hit.text) return;
  const words = await fetchJson(`/api/pages/${hit.id}/words?${new URLSearchParams({ q: state.query })}`).catch(() => ({ boxes: [] }));
  if (state.shown !== hit) return;
  state.boxes = words.boxes;
  repaint();
}

// Neighbouring pages, the original document and the image of the page.
async function loadLinks(hit) {
  for (const id of ["page-before", "page-after"]) $(id).disabled = true;
  $("download").href = `/api/pages/${hit.id}/image?size=2000`;
  $("download").download = `${hit.document.split("/").pop()}-${hit.page}.jpg`;
  $("original").href = `/api/pages/${hit.id}/original#page=${hit.page}`;
  $("original").hidden = true;
  const info = await fetchJson(`/api/pages/${hit.id}`).catch(() => null);
  if (!info || state.shown !== hit) return;
  $("original").hidden = !info.original;
  for (const [id, neighbor, page] of [["page-before", info.previous, hit.page - 1], ["page-after", info.next, hit.page + 1]]) {
    $(id).disabled = !neighbor;
    $(id).onclick = () => {
      const result = state.results.findIndex((r) => r.id === neighbor);
      if (result >= 0) openPage(result);
      else showPage({ id: neighbor, document: hit.document, page, visual: null, text: null }, -1);
    };
  }
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
  const evidence = state.evidence;
  $("words").replaceChildren(chip("all words", evidence.score, null), ...evidence.words.map((w, i) => chip(w.word, w.score, i)));
  choose(null);
}

function scaleMaximum() {
  const all = state.comparison ?? [state.evidence];
  return Math.max(...all.map((evidence) => evidence.max_value), 1e-9);
}

function showPanels(list) {
  state.panels = list;
  const hit = state.shown;
  const wide = list.length > 1 ? `${Math.floor(92 / list.length)}vw` : "92vw";
  const size = list.length > 1 ? 1000 : 1400;
  $("panels").replaceChildren(...list.map(({ caption, color, evidence }) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    canvas.evidence = evidence;
    const image = element("img", { src: `/api/pages/${hit.id}/image?size=${size}`, alt: `Page ${hit.page} of ${hit.document}` });
    image.style.maxHeight = caption || state.zoom ? "none" : "calc(94vh - 13rem)";
    image.style.maxWidth = state.zoom ? "none" : `min(100%, ${wide})`;
    image.addEventListener("load", repaint);
    image.addEventListener("error", () => showMessage($("viewer-status"), "The image of this page cannot be shown.", true));
    const heading = element("figcaption", {}, ...(caption ?? []));
    heading.style.borderColor = color ?? "";
    return element("figure", { class: "panel" }, ...(caption ? [heading] : []),
      element("div", { class: "sheet", onclick: toggleZoom, title: "Toggle full size" }, image, canvas));
  }));
  repaint();
}

function toggleZoom() {
  state.zoom = !state.zoom;
  $("zoom").setAttribute("aria-pressed", state.zoom);
  showPanels(state.panels);
}

function repaint() {
  for (const canvas of $("panels").querySelectorAll("canvas")) {
    if (canvas.evidence && canvas.clientWidth) {
      drawHeatmap(canvas, canvas.evidence, state.word, scaleMaximum());
      drawBoxes(canvas, state.boxes);
    }
  }
  if (!state.evidence) return;
  const frames = state.boxes.length ? "; blue frame: query word in the text" : "";
  $("maximum").textContent = `${scaleMaximum().toFixed(3)}: how much a part of the page adds to the visual score${frames}`;
}

function setComparing(on) {
  $("compare").setAttribute("aria-expanded", on);
  $("methods").hidden = !on;
  if (!on) state.comparison = null;
}

async function showComparison() {
  await state.info; // contains the methods
  const methods = [...$("methods").querySelectorAll("input:checked")].map((i) => i.value);
  if (!methods.length) return;
  const hit = state.shown;
  showMessage($("viewer-status"), "Encoding the original page ...");
  const parts = new URLSearchParams({ q: state.query });
  for (const method of methods) parts.append("method", method);
  try {
    const comparison = await fetchJson(`/api/pages/${hit.id}/compare?${parts}`);
    if (state.shown !== hit) return;
    state.comparison = comparison;
    showMessage($("viewer-status"), "The same page and query under each method; percentages are score retention.");
    showPanels(comparison.map((evidence) => ({
      caption: [element("b", {}, evidence.title), `  ${evidence.vectors} vectors, ${(evidence.retention ?? 100).toFixed(1)} %`],
      color: evidence.color,
      evidence,
    })));
  } catch (error) {
    showMessage($("viewer-status"), error.message, true);
  }
}

function viewerClosed() {
  Object.assign(state, { open: -1, shown: null });
  updateUrl(true);
  ($("results").children[state.last]?.querySelector("button") ?? $("results")).focus();
}

async function readUrl() {
  const parts = new URLSearchParams(location.search);
  const query = (parts.get("q") ?? "").trim(), like = parts.get("like"), page = parts.get("page");
  $("query").value = query;
  setFilters(fromUrl(parts.get("filter")));
  $("per-document").checked = parts.get("per_document") === "true";
  const { request } = state;
  await state.info; // contains the supported modes
  if (request !== state.request) return; // a search began meanwhile
  if (query) setMode(parts.get("mode") ?? state.modes[0]);
  Object.assign(state, { query, like });
  if (searchParameters().toString() !== state.searched) await search(query, false, like);
  const number = state.results.findIndex((r) => r.id === page);
  if (number >= 0) openPage(number, false);
  else if (page) {
    const info = await fetchJson(`/api/pages/${encodeURIComponent(page)}`).catch(() => null);
    if (info) showPage({ id: page, document: info.document, page: info.page, visual: null, text: null }, -1, false);
    else showMessage($("status"), "The page of this link is not in the index.", true);
  } else if ($("viewer").open) {
    Object.assign(state, { open: -1, shown: null });
    $("viewer").close();
  }
}

async function showInfo() {
  try {
    const info = await fetchJson("/api/info");
    state.modes = info.modes;
    state.mode = savedMode(info.modes) ?? info.modes[0];
    showModes($("mode"), info.modes, state.mode, (mode) => {
      state.mode = mode;
      if (state.query) search(state.query);
    });
    const bytes = (n) => (n < 1e6 ? `${(n / 1e3).toFixed(0)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(1)} GB`);
    const count = (n) => n.toLocaleString("en");
    $("info").replaceChildren(
      element("span", {}, element("strong", {}, `Compression ratio ${info.compression_ratio.toFixed(1)}`), element("span", { class: "detail" }, ` (${bytes(info.bytes - info.thumbnail_bytes - info.text_bytes)} without thumbnails and text; uncompressed ${bytes(info.full_vector_bytes)})`)),
      element("span", {}, `${count(info.documents)} documents, ${count(info.pages)} pages`),
      element("span", { class: "detail" }, `${info.method} with ${info.model}`));
    $("info").hidden = false;
    showMethods(info.methods);
  } catch (error) {
    showMessage($("status"), error.message, true);
  }
}

function setMode(mode) {
  if (!state.modes.includes(mode)) return;
  const input = $("mode").querySelector(`input[value="${mode}"]`);
  if (input) input.checked = true;
  state.mode = mode;
}

function setFilters(filters) {
  state.filters = filters;
  showFilters($("filters"), state.facets, filters, (next) => {
    state.filters = next;
    search($("query").value);
  });
}

async function showFacets() {
  try {
    state.facets = (await fetchJson("/api/facets")).facets;
    setFilters(state.filters);
  } catch (error) {
    showMessage($("status"), error.message, true);
  }
}

function showMethods(methods) {
  $("methods").append(...methods.map((info) => {
    const box = element("input", { type: "checkbox", value: info.method });
    box.checked = info.default;
    return element("label", {}, box, ` ${info.title}`);
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

let typingTimer;
// Searches while typing are one step of the history; Enter, or leaving the field, ends it.
$("query").addEventListener("input", () => {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(() => {
    search($("query").value, !state.typing);
    state.typing = true;
  }, TYPING_DELAY);
});
$("query").addEventListener("blur", () => { state.typing = false; });
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typingTimer);
  search($("query").value, !state.typing);
  state.typing = false;
});
$("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
$("close").addEventListener("click", () => $("viewer").close());
$("viewer").addEventListener("close", () => { if (state.shown) viewerClosed(); });
$("more").addEventListener("click", () => search(state.query, false, state.like, Math.min(state.count + RESULTS, MAX_RESULTS)));
$("per-document").addEventListener("change", () => search(state.query));
$("similar").addEventListener("click", () => {
  const { id } = state.shown;
  Object.assign(state, { open: -1, shown: null });
  $("viewer").close();
  $("query").value = "";
  $("results").focus({ preventScroll: true });
  search("", true, id);
});
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    showMessage($("viewer-status"), "Link copied.");
  } catch {
    showMessage($("viewer-status"), `Copy this address: ${location.href}`);
  }
});
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
  const on = $("methods").hidden;
  setComparing(on);
  if (on) showComparison();
  else showPanels([{ caption: null, evidence: state.evidence }]);
});
$("methods").addEventListener("change", (event) => {
  const checked = $("methods").querySelectorAll("input:checked");
  if (checked.length > MAX_METHODS) event.target.checked = false;
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
    if (event.key === "ArrowRight" && state.open >= 0 && state.open < state.results.length - 1) openPage(state.open + 1, false);
  } else if (event.key === "ArrowDown" && inField && !$("viewer").open) {
    event.preventDefault();
    $("results").querySelector("button")?.focus();
  }
});
addEventListener("popstate", readUrl);
addEventListener("resize", repaint);

let savedTheme = null;
try { savedTheme = localStorage.getItem("theme"); } catch { /* a private window */ }
setTheme(savedTheme);
state.info = showInfo();
readUrl();
showFacets();
