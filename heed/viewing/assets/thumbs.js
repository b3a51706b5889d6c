// All heads as small maps, a line for each layer. They are drawn when they come into view.
function makeThumbs({ say, pick, fieldOf }) {
  const node = element("div", { class: "thumbs", role: "grid" });
  node.setAttribute("aria-label", say("headsHelp"));
  let buttons = new Map(); // "layer head" -> button
  let chosen = "";
  const seen = new IntersectionObserver((all) =>
    all
      .filter((entry) => entry.isIntersecting)
      .forEach(({ target }) => (seen.unobserve(target), drawThumb(target))),
  );

  function set(layers, contrast) {
    const heads = Math.max(...layers.map(({ layer }) => layer.heads.length));
    const mean = layers.some(({ layer }) => layer.heads.length > 1);
    node.style.setProperty("--across", heads + (mean ? 1 : 0));
    buttons = new Map();
    seen.disconnect();
    const names = distinct(layers.map(({ layer }) => layer.name));
    const lines = layers.map(({ layer, place }, n) => line(layer, names[n], place, contrast));
    node.replaceChildren(numbers(heads, mean), ...lines);
    mark(chosen);
  }
  function numbers(heads, mean) {
    const names = [...Array(heads).keys(), ...(mean ? [say("mean")] : [])];
    const cells = names.map((name) => element("span", {}, String(name)));
    const look = { role: "row", class: "numbers", "aria-hidden": "true" };
    return element("div", look, element("span"), ...cells);
  }
  function line(layer, label, place, contrast) {
    const name = element("span", { class: "layer-name", role: "rowheader", title: layer.name });
    name.append(element("bdi", {}, label));
    const all = layer.heads.map((_, h) => h);
    const heads = layer.heads.length > 1 ? [...all, null] : all;
    const cells = heads.map((h) => {
      const told = h === null ? say("meanName", layer.name) : say("headName", layer.name, h);
      const canvas = element("canvas", { width: 64, height: 64 });
      const look = { type: "button", role: "gridcell", tabindex: -1, title: told };
      const button = element("button", { ...look, "aria-label": told }, canvas);
      if (h === null) button.className = "mean";
      Object.assign(button, { canvas, place, h, contrast });
      button.addEventListener("click", () => pick(place, h));
      buttons.set(`${place} ${h}`, button);
      seen.observe(button);
      return button;
    });
    return element("div", { role: "row" }, name, ...cells);
  }
  async function drawThumb(button) {
    const field = fieldOf(button.place, button.h);
    if (!field) return;
    const level = field.levels[0];
    const parts = [];
    for (let i = 0; i < tilesDown(level); i++)
      for (let j = 0; j < tilesAcross(level); j++)
        if (field.has(0, i, j)) parts.push([i, j, await field.tile(0, i, j)]);
    const { canvas } = button;
    [canvas.width, canvas.height] = [level.columns, level.rows];
    for (const [i, j, values] of parts) {
      const size = tileSize(level, i, j);
      const image = paintTile(values, ...size, level.high, field.signed, button.contrast);
      canvas.getContext("2d").drawImage(image, j * TILE, i * TILE);
    }
    canvas.classList.toggle("few", Math.max(level.columns, level.rows) < 40);
    button.dataset.drawn = "yes";
  }
  function mark(key) {
    chosen = key;
    for (const [name, button] of buttons) {
      button.setAttribute("aria-selected", name === key);
      button.tabIndex = name === key ? 0 : -1;
    }
  }
  node.addEventListener("keydown", (event) => {
    const lines = [...node.children].slice(1).map((row) => [...row.querySelectorAll("button")]);
    const row = lines.findIndex((line) => line.includes(document.activeElement));
    const column = lines[row]?.indexOf(document.activeElement);
    const move = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    }[event.key];
    if (row < 0 || !move) return;
    event.preventDefault();
    const next = lines[clamp(row + move[0], 0, lines.length - 1)];
    const button = next[clamp(column + move[1], 0, next.length - 1)];
    pick(button.place, button.h);
    button.focus();
  });
  // The part of the chosen map in view.
  function frame({ left, top, wide, high }) {
    const sides = { "--left": left, "--top": top, "--wide": wide, "--high": high };
    const button = buttons.get(chosen);
    for (const other of buttons.values()) other.classList.remove("part");
    button?.classList.toggle("part", wide < 0.999 || high < 0.999);
    for (const [side, share] of Object.entries(sides))
      button?.style.setProperty(side, `${(100 * share).toFixed(2)}%`);
  }
  const redraw = () => buttons.forEach((button) => button.dataset.drawn && drawThumb(button));
  return { node, set, mark, frame, redraw };
}
