// Filters: a group of checkboxes per column. Values of a column are combined with OR, columns with AND.

const quoted = (text, mark) => mark + text.replaceAll(mark, mark + mark) + mark;
const literal = (value) => (typeof value === "string" ? quoted(value, "'") : String(value));
const display = (value) => (value === null ? "no value" : value === true ? "yes" : value === false ? "no" : String(value));

// SQL of the selected filters, {column: [values]} with null for "no value"; "" if nothing is selected.
export function whereClause(selected) {
  const conditions = Object.entries(selected).filter(([, values]) => values.length).map(([column, values]) => {
    const name = quoted(column, '"');
    const known = values.filter((value) => value !== null);
    const either = known.length ? [`${name} in (${known.map(literal).join(", ")})`] : [];
    if (known.length < values.length) either.push(`${name} is null`);
    return `(${either.join(" or ")})`;
  });
  return conditions.join(" and ");
}

// Filters as a URL parameter, and back; invalid parameters select nothing.
export function toUrl(selected) {
  return whereClause(selected) ? JSON.stringify(selected) : null;
}

export function fromUrl(text) {
  try {
    const selected = JSON.parse(text);
    const isValue = (value) => value === null || ["string", "number", "boolean"].includes(typeof value);
    const entries = Object.entries(selected).filter(([, values]) => Array.isArray(values) && values.every(isValue));
    return Object.fromEntries(entries);
  } catch {
    return {};
  }
}

// Fill `box`, a details element, with facets; `onChange` is called with the selected filters.
export function showFilters(box, facets, selected, onChange) {
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
      input.checked = (selected[column] ?? []).includes(value);
      input.addEventListener("change", () => {
        const others = (selected[column] ?? []).filter((other) => other !== value);
        selected = { ...selected, [column]: input.checked ? [...others, value] : others };
        if (!selected[column].length) delete selected[column];
        showCount(box, selected);
        onChange(selected);
      });
      count.textContent = documents;
      count.title = "documents";
      label.append(input, ` ${display(value)} `, count);
      group.append(label);
    }
    return group;
  });
  box.querySelector("div").replaceChildren(...groups);
  box.hidden = !groups.length;
  box.open = box.open || Object.keys(selected).length > 0;
  showCount(box, selected);
}

function showCount(box, selected) {
  const count = Object.values(selected).flat().length;
  box.querySelector("summary").textContent = count ? `Filters (${count})` : "Filters";
}
