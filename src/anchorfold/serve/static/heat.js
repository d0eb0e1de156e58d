// Draws evidence on a page: each lit patch paints its rectangle; all words share one scale.
const COLOURS = [[253, 224, 71], [251, 146, 60], [239, 68, 68], [200, 20, 130]];

function colour(share) {
  const heat = Math.sqrt(Math.min(Math.max(share, 0), 1));
  const position = heat * (COLOURS.length - 1);
  const low = Math.min(Math.floor(position), COLOURS.length - 2);
  const mix = COLOURS[low].map((c, i) => Math.round(c + (COLOURS[low + 1][i] - c) * (position - low)));
  return `rgba(${mix.join(",")},${0.62 * Math.min(heat * 2.5, 1)})`;
}

// Every patch's rectangle [left, top, right, bottom] as shares of the page, in token order.
function rectangles(tiles) {
  const boxes = [];
  for (const [rows, columns, left, top, right, bottom] of tiles) {
    const width = (right - left) / columns;
    const height = (bottom - top) / rows;
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        boxes.push([left + c * width, top + r * height, left + (c + 1) * width, top + (r + 1) * height]);
      }
    }
  }
  return boxes;
}

export function patchValues(explained, word) {
  const total = new Map();
  explained.words.forEach(({ patches }, number) => {
    if (word !== null && number !== word) return;
    for (const [patch, value] of patches) total.set(patch, (total.get(patch) || 0) + value);
  });
  return total;
}

export function drawHeat(canvas, explained, word, most) {
  const boxes = rectangles(explained.tiles);
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const areas = boxes.map(([l, t, r, b]) => (r - l) * (b - t));
  const smallest = Math.min(...areas);
  for (const [patch, value] of patchValues(explained, word)) {
    const [left, top, right, bottom] = boxes[patch];
    pen.fillStyle = colour((value * smallest) / areas[patch] / (most || 1));
    const x = Math.round(left * canvas.width);
    const y = Math.round(top * canvas.height);
    const width = Math.round(right * canvas.width) - x;
    const height = Math.round(bottom * canvas.height) - y;
    pen.fillRect(x, y, width, height);
    if (value > most / 10) {
      // A thin edge shows on paper of any colour.
      pen.strokeStyle = "rgba(255,255,255,.85)";
      pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    }
  }
}
