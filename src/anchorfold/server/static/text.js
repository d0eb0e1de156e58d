// Search modes, their scores, and matching words in snippets and on pages.
const TITLES = { visual: ["Visual", "Page images (MaxSim)"], hybrid: ["Hybrid", "Page images and text"], text: ["Text", "Words of the text (BM25)"] };

export function savedMode(modes) {
  let mode = null;
  try { mode = localStorage.getItem("mode"); } catch { /* a private window */ }
  return modes.includes(mode) ? mode : null;
}

// Show a radio button per mode; nothing if there is only one.
export function showModes(fieldset, modes, selected, onChange) {
  fieldset.hidden = modes.length < 2;
  for (const mode of modes.length < 2 ? [] : modes) {
    const [title, help] = TITLES[mode];
    const radio = document.createElement("input");
    Object.assign(radio, { type: "radio", name: "mode", value: mode, checked: mode === (selected ?? modes[0]) });
    radio.addEventListener("change", () => {
      try { localStorage.setItem("mode", mode); } catch { /* a private window */ }
      onChange(mode);
    });
    const label = document.createElement("label");
    label.title = help;
    label.append(radio, title);
    fieldset.append(label);
  }
}

// A snippet with its matches marked; offsets count code points, not UTF-16 units.
export function snippet({ snippet: text, matches }) {
  const line = document.createElement("span");
  line.className = "snippet";
  const characters = [...text];
  let offset = 0;
  for (const [first, last] of matches) {
    const word = document.createElement("mark");
    word.textContent = characters.slice(first, last).join("");
    line.append(characters.slice(offset, first).join(""), word);
    offset = last;
  }
  line.append(characters.slice(offset).join(""));
  return line;
}

// Labelled scores of a hit, the one that orders the results first: "fused score 4.657", "visual score 1.097", ...
export function scoreLabels({ score, visual, text }) {
  // BM25 of a word that half of the pages contain is close to zero.
  const shown = (value) => (value > 0 && value < 0.0005 ? "<0.001" : value.toFixed(3));
  const fused = visual !== null && text !== null ? [`fused score ${shown(score)}`] : [];
  const sides = [visual === null ? "" : `visual score ${shown(visual)}`, text === null ? "" : `text score ${shown(text)}`];
  return [...fused, ...sides.filter(Boolean)];
}

// Draw frames around words (fractions of the page) on top of the heatmap.
export function drawBoxes(canvas, boxes) {
  const context = canvas.getContext("2d");
  const edge = Math.max(2, canvas.width / 600);
  const frames = boxes.map(([left, top, right, bottom]) => [left * canvas.width - edge, top * canvas.height - edge,
    (right - left) * canvas.width + 2 * edge, (bottom - top) * canvas.height + 2 * edge]);
  // White below, so that the frames are visible on any background.
  for (const [color, width] of [["rgba(255,255,255,.9)", 3 * edge], ["rgb(20,90,220)", edge]]) {
    context.strokeStyle = color;
    context.lineWidth = width;
    for (const frame of frames) context.strokeRect(...frame);
  }
}
