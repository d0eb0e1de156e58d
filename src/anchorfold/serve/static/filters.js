// Filters of the page: columns with few values as groups of boxes. Values of a column are alternatives, columns add up.

const quoted = (text, mark) => mark + text.replaceAll(mark, mark + mark) + mark;
const literal = (value) => (typeof value === "string" ? quoted(value, "'") : String(value));
const shown = (value) => (value === null ? "not known" : value === true ? "yes" : value === false ? "no" : String(value));

// What is chosen, {column: [values]} with null for "not known", as the condition that the server takes; "" for nothing.
export function whereOf(chosen) {
  const conditions = Object.entries(chosen).filter(([, values]) => values.length).map(([column, values]) => {
    const name = quoted(column, '"');
    const known = values.filter((value) => value !== null);
    const either = known.length ? [`${name} in (${known.map(literal).join(", ")})`] : [];
    if (known.length < values.length) either.push(`${name} is null`);
    return `(${either.join(" or ")})`;
  });
  return conditions.join(" and ");
}

// The same as it stands in the address, and back; whatever does not look like it chooses nothing.
export function toAddress(chosen) {
  return whereOf(chosen) ? JSON.stringify(chosen) : null;
}

export function fromAddress(text) {
  try {
    const chosen = JSON.parse(text);
    const isValue = (value) => value === null || ["string", "number", "boolean"].includes(typeof value);
    const entries = Object.entries(chosen).filter(([, values]) => Array.isArray(values) && values.every(isValue));
    return Object.fromEntries(entries);
  } catch {
    return {};
  }
}

// Fill `box`, a details element, with the facets of an index; `changed` is called with what is chosen.
export function showFilters(box, facets, chosen, changed) {
  const groups = facets.map(({ column, values, missing }) => {
    const group = document.createElement("fieldset");
    const legend = document.createElement("legend");
    legend.textContent = column;
    group.append(legend);
    const all = [...values, ...(missing ? [{ value: null, documents: missing }] : [])];
    for (const { value, documents } of all) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      const count = document.createElement("small");
      input.type = "checkbox";
      input.checked = (chosen[column] ?? []).includes(value);
      input.addEventListener("change", () => {
        const others = (chosen[column] ?? []).filter((other) => other !== value);
        chosen = { ...chosen, [column]: input.checked ? [...others, value] : others };
        if (!chosen[column].length) delete chosen[column];
        showCount(box, chosen);
        changed(chosen);
      });
      count.textContent = documents;
      count.title = "documents";
      label.append(input, ` ${shown(value)} `, count);
      group.append(label);
    }
    return group;
  });
  box.querySelector("div").replaceChildren(...groups);
  box.hidden = !groups.length;
  box.open = box.open || Object.keys(chosen).length > 0;
  showCount(box, chosen);
}

function showCount(box, chosen) {
  const count = Object.values(chosen).flat().length;
  box.querySelector("summary").textContent = count ? `Filters (${count})` : "Filters";
}
