// The statistics of every head: a sortable table, with a small bar behind each number.
function makeFigures({ say, pick }) {
  const node = element("div", { class: "figures" });
  let lines = new Map();

  function set(layers, side) {
    const names = [...new Set(layers.flatMap(({ layer }) => Object.keys(layer.statistics)))];
    lines = new Map();
    node.replaceChildren();
    if (!names.length) return;
    const most = Object.fromEntries(names.map((name) => [name, largest(layers, name)]));
    const title = (name) => (SAID.en[`${name}Help`] ? say(`${name}Help`) : "");
    const heads = [
      heading(say("layer"), ""),
      heading(say("head"), "number"),
      ...names.map((name) => heading(say(name), "number", title(name))),
    ];
    const labels = distinct(layers.map(({ layer }) => layer.name));
    const rows = layers.flatMap(({ layer, place }, n) =>
      layer.heads.map((_, h) => line(layer, labels[n], place, h, names, most)),
    );
    const table = element(
      "table",
      { class: "sortable" },
      element("caption", {}, side ? say("figuresOf", side) : say("figures")),
      element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...rows),
    );
    sortable(table);
    node.append(element("div", { class: "scroll tall", tabindex: 0, role: "region" }, table));
    node.firstChild.setAttribute("aria-label", say("figures"));
  }
  function line(layer, label, place, h, names, most) {
    const name = element("td", { title: layer.name }, element("bdi", {}, short(label)));
    const button = element("button", { type: "button", class: "head-number" }, String(h));
    button.setAttribute("aria-label", say("headName", layer.name, h));
    const number = element("td", { class: "number", "data-value": h }, button);
    const cells = names.map((key) => cell(layer.statistics[key]?.[h] ?? null, most[key]));
    const row = element("tr", {}, name, number, ...cells);
    row.addEventListener("click", () => pick(place, h));
    lines.set(`${place} ${h}`, row);
    return row;
  }
  function mark(key) {
    for (const [name, row] of lines) row.classList.toggle("current", name === key);
  }
  return { node, set, mark };
}

function heading(name, look, help = "") {
  const button = element("button", { type: "button" }, name);
  const cell = element("th", { scope: "col", class: look }, button);
  if (help) cell.title = help;
  return cell;
}

// A number with a minus sign; what is rounded to zero has none.
function plain(value) {
  const text = Math.abs(value).toFixed(Math.abs(value) >= 100 ? 0 : 2);
  return value < 0 && Number(text) ? `−${text}` : text;
}

function largest(layers, name) {
  const values = layers.flatMap(({ layer }) => layer.statistics[name] ?? []);
  return Math.max(0, ...values.filter((x) => x !== null).map(Math.abs)) || 1;
}

function cell(value, most) {
  if (value === null) return element("td", { class: "number", "data-value": "" }, "–");
  const number = element("td", { class: "number", "data-value": value });
  const bar = element("i", { "aria-hidden": "true" });
  bar.style.width = `${(100 * Math.abs(value)) / most}%`;
  number.append(bar, element("span", {}, plain(value)));
  return number;
}
