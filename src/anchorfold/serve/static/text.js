// Searching by text beside pixels: which of them, remembered; the words that match, below a thumbnail and on the page.
const TITLES = { visual: ["Looks", "By what pages look like"], hybrid: ["Both", "By looks and words"], text: ["Words", "By what pages say"] };

export function savedMode(modes) {
  let mode = null;
  try { mode = localStorage.getItem("mode"); } catch { /* a private window */ }
  return modes.includes(mode) ? mode : null;
}

// Buttons for the modes of an index; nothing if there is no choice.
export function showModes(fieldset, modes, chosen, choose) {
  fieldset.hidden = modes.length < 2;
  for (const mode of modes.length < 2 ? [] : modes) {
    const [title, help] = TITLES[mode];
    const radio = document.createElement("input");
    Object.assign(radio, { type: "radio", name: "mode", value: mode, checked: mode === (chosen ?? modes[0]) });
    radio.addEventListener("change", () => {
      try { localStorage.setItem("mode", mode); } catch { /* a private window */ }
      choose(mode);
    });
    const label = document.createElement("label");
    label.title = help;
    label.append(radio, title);
    fieldset.append(label);
  }
}

// A piece of text with its matches marked; places count characters, not the halves that JavaScript counts.
export function snippet({ snippet: text, matches }) {
  const line = document.createElement("span");
  line.className = "snippet";
  const characters = [...text];
  let at = 0;
  for (const [first, last] of matches) {
    const word = document.createElement("mark");
    word.textContent = characters.slice(first, last).join("");
    line.append(characters.slice(at, first).join(""), word);
    at = last;
  }
  line.append(characters.slice(at).join(""));
  return line;
}

export function sides({ visual, text }) {
  const parts = [visual === null ? "" : `looks ${visual.toFixed(3)}`, text ? `words ${text.toFixed(2)}` : ""];
  return parts.filter(Boolean).join(", ") || "score";
}

// Frames round words, as shares of the page, over what the canvas shows already.
export function drawMarks(canvas, boxes) {
  const pen = canvas.getContext("2d");
  const edge = Math.max(2, canvas.width / 600);
  const frames = boxes.map(([left, top, right, bottom]) => [left * canvas.width - edge, top * canvas.height - edge,
    (right - left) * canvas.width + 2 * edge, (bottom - top) * canvas.height + 2 * edge]);
  // White below, so that the frames show on paper of any colour.
  for (const [colour, width] of [["rgba(255,255,255,.9)", 3 * edge], ["rgb(20,90,220)", edge]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    for (const frame of frames) pen.strokeRect(...frame);
  }
}
