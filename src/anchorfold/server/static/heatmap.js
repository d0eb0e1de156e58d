// Heatmap of a page: each patch with a value fills its rectangle; all words share one scale.
const COLORS = [[253, 224, 71], [251, 146, 60], [239, 68, 68], [200, 20, 130]];

function color(value) {
  const heat = Math.sqrt(Math.min(Math.max(value, 0), 1));
  const position = heat * (COLORS.length - 1);
  const low = Math.min(Math.floor(position), COLORS.length - 2);
  const mix = COLORS[low].map((c, i) => Math.round(c + (COLORS[low + 1][i] - c) * (position - low)));
  return `rgba(${mix.join(",")},${0.62 * Math.min(heat * 2.5, 1)})`;
}

// Rectangle [left, top, right, bottom] of each patch in token order, as fractions of the page.
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

export function patchValues(evidence, word) {
  const total = new Map();
  evidence.words.forEach(({ patches }, number) => {
    if (word !== null && number !== word) return;
    for (const [patch, value] of patches) total.set(patch, (total.get(patch) || 0) + value);
  });
  return total;
}

export function drawHeatmap(canvas, evidence, word, maximum) {
  const boxes = rectangles(evidence.tiles);
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  const areas = boxes.map(([l, t, r, b]) => (r - l) * (b - t));
  const smallest = Math.min(...areas);
  for (const [patch, value] of patchValues(evidence, word)) {
    const [left, top, right, bottom] = boxes[patch];
    context.fillStyle = color((value * smallest) / areas[patch] / (maximum || 1));
    const x = Math.round(left * canvas.width);
    const y = Math.round(top * canvas.height);
    const width = Math.round(right * canvas.width) - x;
    const height = Math.round(bottom * canvas.height) - y;
    context.fillRect(x, y, width, height);
    if (value > maximum / 10) {
      // The canvas is multiplied with the page, so letters stay dark; an edge marks patches on dark backgrounds.
      context.strokeStyle = "rgba(200,20,130,.55)";
      context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    }
  }
}
