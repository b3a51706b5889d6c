// Queries on the left, keys on the right, and a line for every weight that is large enough.
const AROUND = 36; // words of a side that are shown together

function drawThreads({ field, queries, keys, chosen, choose, say, upto, title }) {
  const rows = around(queries.length, chosen[0] ?? 0);
  const columns = around(keys.length, middleKey(queries, keys, chosen));
  const step = 24;
  const count = Math.max(rows.length, columns.length);
  const height = count * step + 8;
  const wideOf = (words) => (n) => extent(short(words[n]), 14);
  const long = (words, list) => 12 + 1.1 * Math.max(...list.map(wideOf(words)));
  const left = long(queries, rows);
  const right = left + 280;
  const wide = right + long(keys, columns);
  const at = (list, n) => 4 + (n - list[0] + 0.5 + (count - list.length) / 2) * step;
  const svg = shape("svg", { viewBox: `0 0 ${wide} ${height}`, width: wide, height, role: "img" });
  svg.setAttribute("aria-label", say("lines"));
  const lines = shape("g");
  svg.append(lines);
  const word = (text, x, y, side, row, column, mine) => {
    const look = { x, y: y + 4.5, "text-anchor": side, class: "word", direction: "ltr" };
    const node = shape("text", look, short(text));
    if (short(text) !== text) node.append(shape("title", {}, text));
    node.addEventListener("pointerenter", () => choose(row, column));
    node.classList.toggle("chosen", mine);
    node.classList.toggle("later", upto !== null && side === "end" && row > upto);
    svg.append(node);
  };
  const [row, column] = chosen;
  rows.forEach((r) => word(queries[r], left - 10, at(rows, r), "end", r, column, r === row));
  columns.forEach((c) => word(keys[c], right + 10, at(columns, c), "start", row, c, c === column));
  const note = element("p", { class: "note" });
  if (queries.length > AROUND) note.textContent = say("outside", rows.length);
  let missing = false;
  const drawn = rows.map(async (r) => {
    const weights = upto !== null && r > upto ? null : await rowOf(field, r);
    if (!weights) return;
    const most = weights.values.reduce((a, b) => Math.max(a, b), 0);
    for (const c of columns) {
      const share = weights.values[c];
      missing ||= !weights.known[c];
      if (!weights.known[c] || share < 0.04 || share < most * 0.08) continue;
      const lit = chosen[0] === null || chosen[0] === r;
      const [a, b, half] = [at(rows, r), at(columns, c), (left + right) / 2];
      const d = `M${left} ${a}C${half} ${a} ${half} ${b} ${right} ${b}`;
      const opacity = (lit ? 0.2 + 0.8 * share : 0.12 * share).toFixed(3);
      lines.append(shape("path", { class: "thread", d, opacity, "stroke-width": 1 + 4 * share }));
    }
  });
  Promise.all(drawn).then(() => {
    if (missing) note.textContent = say("noLines");
  });
  const name = element("div", { class: "pane-name" }, title);
  return element("div", { class: "threads" }, name, svg, note);
}

// A range of positions with a given one in the middle, as far as the ends allow.
function around(count, place) {
  const first = clamp(place - Math.floor(AROUND / 2), 0, Math.max(0, count - AROUND));
  return Array.from({ length: Math.min(AROUND, count) }, (_, n) => first + n);
}
function middleKey(queries, keys, [row, column]) {
  if (column !== null && row === null) return column;
  return Math.round(((row ?? 0) / Math.max(1, queries.length - 1)) * (keys.length - 1));
}
