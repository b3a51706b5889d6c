// Shared by the drawings of a page. Text is inserted as text, never as markup.
const SCALE = document.documentElement.dataset.scale
  .split(" ")
  .map((c) => c.split(",").map(Number));
const ruler = document.createElement("canvas").getContext("2d");
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const SANS = getComputedStyle(document.documentElement).getPropertyValue("--sans");

function element(name, facts = {}, ...inside) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(facts)) node.setAttribute(key, value);
  node.append(...inside);
  return node;
}
function shape(name, facts = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(facts)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
}
function extent(text, font) {
  ruler.font = `${font}px ${SANS}`;
  return ruler.measureText(text).width;
}
function colour(share) {
  const place = clamp(share, 0, 1) * (SCALE.length - 1);
  const first = Math.min(Math.floor(place), SCALE.length - 2);
  const mix = SCALE[first].map((a, i) =>
    Math.round(a + (SCALE[first + 1][i] - a) * (place - first)),
  );
  return `rgb(${mix.join(" ")})`;
}
const figure = (w) => (w > 0.995 ? w.toFixed(w < 9.5 ? 1 : 0) : w.toFixed(2).replace("0.", "."));
// Whether a label is all Chinese or the like, which can be read from top to bottom.
const stands = (text) => /^[\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uff60]+$/.test(text);
const LONGEST = 22;
function short(text) {
  const letters = [...text];
  return letters.length > LONGEST ? letters.slice(0, LONGEST - 1).join("") + "…" : text;
}

// Decode what Python packed: each label once, weights as bytes from the lowest to the highest.
function unpack(packed) {
  return packed.panels.map((panel) => {
    const bytes = Uint8Array.from(atob(panel.weight), (c) => c.charCodeAt(0));
    const rows = packed.labels[panel.rows];
    const columns = packed.labels[panel.columns];
    const wide = bytes.length > rows.length * columns.length; // two bytes for each
    const steps = wide ? new Uint16Array(bytes.buffer) : bytes;
    const share = (r, c) => steps[r * columns.length + c] / (wide ? 65535 : 255);
    const weight = (r, c) => panel.low + (panel.high - panel.low) * share(r, c);
    return { ...panel, rows, columns, share, weight };
  });
}

// The words of a view: for every row and column its text and the highlight behind it.
const noWords = () => ({ row: [], column: [] });
function addWord(words, axis, label, at, box) {
  const name = short(label);
  const text = shape("text", { "text-anchor": "middle", ...at }, name);
  if (name !== label) text.append(shape("title", {}, label));
  const patch = shape("rect", { class: "lit", rx: 4, opacity: 0, ...box });
  words[axis].push({ text, patch });
  return text;
}
const nodes = (words) => {
  const all = [...words.row, ...words.column];
  return [...all.map((word) => word.patch), ...all.map((word) => word.text)];
};
function light(panel, words, row, column) {
  const ofRow = (r) => (column === null ? 0 : panel.share(r, column));
  words.row.forEach(({ text, patch }, r) => {
    patch.setAttribute("opacity", row === null ? ofRow(r) : r === row ? 0.25 : 0);
    text.classList.toggle("chosen", r === row);
  });
  words.column.forEach(({ text, patch }, c) => {
    patch.setAttribute("opacity", row !== null ? panel.share(row, c) : c === column ? 0.25 : 0);
    text.classList.toggle("chosen", c === column);
  });
}
