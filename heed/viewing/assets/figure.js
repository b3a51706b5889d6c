// One figure: a choice of panels and of views, a stage, and a line about the selection.
function build(host) {
  const panels = unpack(JSON.parse(host.querySelector("script").textContent));
  const views = { map: drawMap, lines: drawLines };
  const tools = element("div", { class: "tools" });
  const stage = element("div", { class: "stage", tabindex: 0, role: "group" });
  const said = element("span", { "aria-live": "polite" });
  const key = element("span", { class: "key" });
  let [panel, kind, view, chosen, room] = [panels[0], "map", null, [null, null], 0];

  const pick = (chosenPanel) => ((panel = chosenPanel), draw());
  const turn = (chosenKind) => ((kind = chosenKind), draw());
  const named = Object.keys(views).map((name) => [name, name[0].toUpperCase() + name.slice(1)]);
  tools.append(panelPicker(panels, pick), switchOf("view", named, kind, turn));

  function draw() {
    room = stage.clientWidth - 6;
    view = views[kind](panel, room);
    view.svg.setAttribute("aria-hidden", "true");
    stage.replaceChildren(view.svg);
    const size = `${panel.rows.length} target words over ${panel.columns.length} source words`;
    stage.setAttribute("aria-label", `${panel.title}: ${size}. Arrow keys choose a word.`);
    key.replaceChildren(...(kind === "map" ? legend(panel) : []));
    choose(null, null);
  }
  function choose(row, column) {
    chosen = [row, column];
    view.choose(row, column);
    said.replaceChildren(...sentence(panel, row, column));
  }
  const point = (event) => {
    const [row, column] = view.at(event);
    if (row !== chosen[0] || column !== chosen[1]) choose(row, column);
  };
  stage.addEventListener("pointermove", point);
  stage.addEventListener("pointerdown", point); // a finger does not hover, and leaves at once
  stage.addEventListener("pointerleave", ({ pointerType }) => {
    if (pointerType !== "touch") choose(null, null);
  });
  stage.addEventListener("blur", () => choose(null, null));
  stage.addEventListener("keydown", (event) => {
    const next = stepped(event.key, panel, ...chosen);
    if (!next) return;
    choose(...next);
    event.preventDefault();
  });
  host.append(tools, stage, element("p", { class: "readout" }, key, said));
  host.style.minHeight = "";
  draw();
  new ResizeObserver(() => {
    if (Math.abs(stage.clientWidth - 6 - room) > 8) draw();
  }).observe(stage);
}

function panelPicker(panels, pick) {
  if (panels.length === 1) return element("span", { class: "name" }, panels[0].title);
  const options = panels.map((panel, i) => element("option", { value: i }, panel.title));
  const select = element("select", { "aria-label": "attention" }, ...options);
  select.addEventListener("change", () => pick(panels[select.value]));
  return select;
}

// Up and down go through the target words, left and right through the source words.
function stepped(key, { rows, columns }, row, column) {
  const down = { ArrowDown: 1, ArrowUp: -1 }[key];
  const across = { ArrowRight: 1, ArrowLeft: -1 }[key];
  const next = (place, by, all) => (place === null ? 0 : clamp(place + by, 0, all.length - 1));
  if (key === "Escape") return [null, null];
  if (down && rows.length) return [next(row, down, rows), null];
  if (across && columns.length) return [null, next(column, across, columns)];
  return null;
}

function legend(panel) {
  const bar = element("canvas", { class: "heed-cells", width: 64, height: 1, "aria-hidden": "true" });
  const pen = bar.getContext("2d");
  for (let i = 0; i < 64; i++) {
    pen.fillStyle = colour(i / 63);
    pen.fillRect(i, 0, 1, 1);
  }
  return [String(+panel.low.toPrecision(2)), bar, panel.high.toFixed(2)];
}

// The selection in words: love ← 爱 0.93, 我 0.04
function sentence(panel, row, column) {
  const bold = (text) => element("b", {}, text);
  const said = (weight) => ` ${weight.toFixed(2)}`;
  if (row === null && column === null) return [];
  if (row !== null && column !== null) {
    const weight = said(panel.weight(row, column));
    return [bold(panel.rows[row]), " ← ", bold(panel.columns[column]), weight];
  }
  const others =
    row !== null
      ? panel.columns.map((word, c) => [panel.weight(row, c), word])
      : panel.rows.map((word, r) => [panel.weight(r, column), word]);
  const most = others.filter(([weight]) => weight >= 0.01).sort(([a], [b]) => b - a);
  const list = most.slice(0, 4).flatMap(([w, word], i) => [i ? ", " : "", word, said(w)]);
  const [name, arrow] = row !== null ? [panel.rows[row], " ← "] : [panel.columns[column], " → "];
  return [bold(name), arrow, ...(list.length ? list : ["nothing"])];
}
