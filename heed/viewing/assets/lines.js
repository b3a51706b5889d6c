// Source words above, target words below, and a line for every weight that is large enough.
function drawLines(panel, room) {
  const { font, places, width } = layLines(panel, room);
  const box = font + 12;
  const high = clamp(70 + 5 * Math.max(panel.rows.length, panel.columns.length), 90, 220);
  const height = high + 2 * box;
  const words = noWords();
  const name = (axis, y) => (label, i) => {
    const { x, long } = places[axis][i];
    const at = { x, y: y + box / 2 + font * 0.35, "font-size": font };
    const patch = { x: x - long / 2 - 5, y: y + 1, width: long + 10, height: box - 2 };
    addWord(words, axis, label, at, patch);
  };
  panel.columns.forEach(name("column", 0));
  panel.rows.forEach(name("row", high + box));
  const links = makeLinks(panel, places, box + 2, box + high - 2);
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  svg.append(...links.map((link) => link.path), ...nodes(words));
  const choose = (row, column) => {
    fade(links, row, column);
    light(panel, words, row, column);
  };
  return { svg, choose, at: (event) => wordAt(event, svg, places, { box, width, height }) };
}

// Words side by side, spread over the width or drawn smaller to fit it.
function layLines({ rows, columns }, room) {
  const total = (labels, font, gap) =>
    labels.reduce((sum, label) => sum + extent(short(label), font) + gap, 0);
  const need = (font, gap) => Math.max(total(rows, font, gap), total(columns, font, gap));
  const most = Math.max(rows.length, columns.length, 1);
  let font = 16;
  const gap = clamp(18 + (0.9 * (room - need(16, 18))) / most, 12, 40);
  while (font > 11 && need(font, gap) > room) font -= 1;
  const width = need(font, gap) + 4;
  const spread = (labels) => {
    let x = (width - total(labels, font, gap)) / 2;
    return labels.map((label) => {
      const long = extent(short(label), font);
      x += long + gap;
      return { x: x - (long + gap) / 2, long };
    });
  };
  return { font, width, places: { row: spread(rows), column: spread(columns) } };
}

function makeLinks(panel, places, top, bottom) {
  const middle = (top + bottom) / 2;
  const links = [];
  places.row.forEach(({ x: b }, r) =>
    places.column.forEach(({ x: a }, c) => {
      const share = panel.share(r, c);
      if (share < 0.03) return;
      const d = `M${a} ${top}C${a} ${middle} ${b} ${middle} ${b} ${bottom}`;
      const look = { class: "link", d, "stroke-width": 0.75 + 2.75 * share, opacity: share };
      links.push({ r, c, share, path: shape("path", look) });
    }),
  );
  return links;
}

function fade(links, row, column) {
  const none = row === null && column === null;
  for (const { r, c, share, path } of links) {
    const mine = row !== null ? r === row : c === column;
    path.setAttribute("opacity", none ? share : mine ? Math.max(0.15, share) : share * 0.06);
  }
}

function wordAt(event, svg, places, { box, width, height }) {
  const edge = svg.getBoundingClientRect();
  const zoom = width / edge.width;
  const x = (event.clientX - edge.left) * zoom;
  const y = (event.clientY - edge.top) * zoom;
  const under = (list) => list.findIndex((word) => Math.abs(x - word.x) <= word.long / 2 + 6);
  const row = y >= height - box ? under(places.row) : -1;
  const column = y <= box ? under(places.column) : -1;
  return row >= 0 ? [row, null] : [null, column >= 0 ? column : null];
}
