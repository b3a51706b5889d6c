// A heat map. A view is { svg, choose, at }: `choose(row, column)` highlights the weights of a word
// (null for the one not chosen, both null for none), `at(event)` is the cell under the pointer.
function drawMap(panel, room) {
  const lay = layMap(panel, room);
  const words = noWords();
  panel.rows.forEach((label, r) => nameRow(words, lay, label, r));
  panel.columns.forEach((label, c) => nameColumn(words, lay, label, c));
  const svg = shape("svg", {
    width: lay.width,
    height: lay.height,
    viewBox: `0 0 ${lay.width} ${lay.height}`,
  });
  const focus = makeFocus(panel, lay);
  svg.append(...nodes(words), ...makeCells(panel, lay), ...focus.nodes);
  const choose = (row, column) => {
    focus.put(row, column);
    light(panel, words, row, column);
  };
  return { svg, choose, at: (event) => cellAt(event, svg, panel, lay) };
}

// The largest cells that fit, and the room for the labels; bold ones are a tenth wider.
function layMap({ rows, columns }, room) {
  const most = Math.max(rows.length, columns.length, 1);
  let size = clamp(Math.floor(620 / most), 11, 42) + 1;
  let font, left;
  do {
    font = clamp(--size * 0.6, 8.5, 14);
    left = 12 + 1.1 * Math.max(0, ...rows.map((label) => extent(short(label), font)));
  } while (size > 11 && left + size * columns.length + 2 > room);
  const names = columns.map(short);
  const level = names.every((name) => extent(name, font) <= size - 2);
  const tall = (name) => (stands(name) ? name.length * font * 1.05 : extent(name, font));
  const top = 8 + (level ? font : Math.max(0, ...names.map(tall)));
  const width = left + size * columns.length + 2;
  const height = top + size * rows.length + 2;
  return { size, font, left, top, level, width, height };
}

function nameRow(words, { size, font, left, top }, label, r) {
  const y = top + size * r;
  const at = { x: left - 8, y: y + size / 2 + font * 0.35, "font-size": font };
  const box = { x: 0, y, width: left - 3, height: size - 1 };
  addWord(words, "row", label, { ...at, "text-anchor": "end" }, box);
}

// Level labels if all fit; otherwise Chinese from top to bottom, the rest rotated.
function nameColumn(words, { size, font, left, top, level }, label, c) {
  const x = left + size * (c + 0.5);
  const y = top - 6;
  const name = short(label);
  const box = { x: left + size * c, y: 0, width: size - 1, height: top - 2 };
  const text = addWord(words, "column", label, { x, y, "font-size": font }, box);
  if (level) return;
  if (stands(name)) {
    const letters = [...name];
    const step = font * 1.05;
    const lines = letters.map((letter, i) =>
      shape("tspan", { x, y: y - (letters.length - 1 - i) * step }, letter),
    );
    text.replaceChildren(...lines);
  } else {
    text.setAttribute("text-anchor", "start");
    text.setAttribute("transform", `rotate(-90 ${x} ${y}) translate(0 ${font * 0.35})`);
  }
}

function makeCells(panel, { size, left, top }) {
  const cells = shape("g", { class: "heed-cells", "shape-rendering": "crispEdges" });
  const look = { class: "figure heed-cells", "text-anchor": "middle", "font-size": 11 };
  const figures = shape("g", look);
  const edge = shape("rect", {
    class: "edge",
    x: left - 1,
    y: top - 1,
    width: size * panel.columns.length + 1,
    height: size * panel.rows.length + 1,
    "shape-rendering": "crispEdges",
  });
  const side = size >= 12 ? size - 1 : size;
  panel.rows.forEach((_, r) =>
    panel.columns.forEach((_, c) => {
      const share = panel.share(r, c);
      const [x, y] = [left + size * c, top + size * r];
      cells.append(shape("rect", { x, y, width: side, height: side, fill: colour(share) }));
      if (size < 28 || share < 0.05) return;
      const place = { x: x + side / 2, y: y + side / 2 + 4, class: share > 0.6 ? "pale" : "dark" };
      figures.append(shape("text", place, figure(panel.weight(r, c))));
    }),
  );
  return [edge, cells, figures];
}

// A frame around the selection and a veil over the cells on either side of it.
function makeFocus({ rows, columns }, { size, left, top }) {
  const [before, after] = [0, 1].map(() =>
    shape("rect", { class: "veil", "shape-rendering": "crispEdges" }),
  );
  const frame = shape("rect", { class: "frame", rx: 2 });
  const across = size * columns.length;
  const down = size * rows.length;
  const set = (node, x, y, width, height) => {
    for (const [key, value] of Object.entries({ x, y, width, height }))
      node.setAttribute(key, Math.max(0, value));
  };
  function put(row, column) {
    const [x, y] = [left + size * column, top + size * row];
    if (row !== null) {
      set(before, left, top, across, y - top);
      set(after, left, y + size, across, top + down - y - size);
      if (column === null) set(frame, left - 1, y - 1, across + 1, size + 1);
      else set(frame, x - 1, y - 1, size + 1, size + 1);
    } else if (column !== null) {
      set(before, left, top, x - left, down);
      set(after, x + size, top, left + across - x - size, down);
      set(frame, x - 1, top - 1, size + 1, down + 1);
    } else [before, after, frame].forEach((node) => set(node, 0, 0, 0, 0));
  }
  return { nodes: [before, after, frame], put };
}

// The row and column under the pointer; a label selects all its cells.
function cellAt(event, svg, { rows, columns }, { size, left, top, width }) {
  const box = svg.getBoundingClientRect();
  const zoom = width / box.width;
  const c = Math.floor(((event.clientX - box.left) * zoom - left) / size);
  const r = Math.floor(((event.clientY - box.top) * zoom - top) / size);
  if (r >= 0 && r < rows.length && c < columns.length) return [r, c >= 0 ? c : null];
  return r < 0 && c >= 0 && c < columns.length ? [null, c] : [null, null];
}
