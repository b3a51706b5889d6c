// A field has weights at several levels, coarse to fine, cut into tiles. All views read fields:
// { T, S, levels, has(n, i, j), tile(n, i, j) -> values, row(t) -> exact weights or null }.
// A level has the number of queries and keys per cell, and its largest value if that is known.
const TILE = 128;
const tilesAcross = (level) => Math.ceil(level.columns / TILE);
const tilesDown = (level) => Math.ceil(level.rows / TILE);
const tileSize = (level, i, j) => [
  Math.min(TILE, level.rows - i * TILE),
  Math.min(TILE, level.columns - j * TILE),
];

function headField(head, store) {
  const made = new Map();
  const levels = head.levels.filter((level) => level.scale);
  const number = (n, i, j) => i * tilesAcross(levels[n]) + j;
  const scales = async (n) => new Float32Array((await store(levels[n].scale)).buffer);
  async function values(n, i, j) {
    const [rows, columns] = tileSize(levels[n], i, j);
    const out = new Float32Array(rows * columns);
    const place = levels[n].tiles[number(n, i, j)];
    if (!place[1]) return out;
    const [bytes, scale] = await Promise.all([
      store(place),
      remember(made, `scale ${n}`, () => scales(n)),
    ]);
    const wide = bytes.length > out.length; // two bytes for each
    const shares = wide ? new Uint16Array(bytes.buffer) : bytes;
    for (let r = 0, at = 0; r < rows; r++) {
      const unit = scale[i * TILE + r] / (wide ? 65535 : 255);
      for (let c = 0; c < columns; c++, at++) out[at] = shares[at] * unit;
    }
    return out;
  }
  async function row(t) {
    const kept = head.rows[t];
    if (!kept) return null;
    const bytes = await store(kept.slice(1));
    return Float32Array.from(bytes, (b) => (b * kept[0]) / 255);
  }
  return {
    T: head.T,
    S: head.S,
    levels: levels.map((level) => ({ ...level })),
    has: (n, i, j) => number(n, i, j) in levels[n].tiles,
    tile: (n, i, j) => remember(made, `${n} ${i} ${j}`, () => values(n, i, j)),
    row,
  };
}

// Combine fields of one size: their mean, or their difference. Null if they have no level in
// common.
function combined(fields, combine, signed) {
  const [first, ...others] = fields;
  if (others.some((field) => field.T !== first.T || field.S !== first.S)) return null;
  const same = (a) => (b) => a.rows === b.rows && a.columns === b.columns;
  const found = first.levels
    .map((level) => fields.map((field) => field.levels.findIndex(same(level))))
    .filter((places) => places.every((n) => n >= 0));
  if (!found.length) return null;
  const made = new Map();
  const levels = found.map(([n]) => ({ ...first.levels[n], high: 0, open: true }));
  async function values(n, i, j) {
    const each = await Promise.all(fields.map((field, f) => field.tile(found[n][f], i, j)));
    const out = each[0].map((_, at) => combine(each.map((one) => one[at])));
    for (const value of out) levels[n].high = Math.max(levels[n].high, Math.abs(value));
    return out;
  }
  return {
    T: first.T,
    S: first.S,
    signed,
    levels,
    has: (n, i, j) => fields.every((field, f) => field.has(found[n][f], i, j)),
    tile: (n, i, j) => remember(made, `${n} ${i} ${j}`, () => values(n, i, j)),
    row: async () => null,
  };
}
// The same field with the colour scale of the larger of two, so that both can be compared by eye.
function besides(field, other) {
  const levels = field.levels.map((level) => {
    const same = ({ down, across }) => down === level.down && across === level.across;
    const twin = other.levels.find(same);
    return Object.create(level, { high: { get: () => Math.max(level.high, twin?.high ?? 0) } });
  });
  return { ...field, levels };
}
const meanField = (fields) =>
  combined(fields, (all) => all.reduce((sum, x) => sum + x, 0) / all.length, false);
const differenceField = (a, b) => combined([a, b], ([x, y]) => x - y, true);

// One cell at the finest level that has it: { value, down, across }.
async function cellOf(field, row, column) {
  const kept = await field.row(row);
  if (kept) return { value: kept[column], down: 1, across: 1 };
  for (let n = field.levels.length - 1; n >= 0; n--) {
    const level = field.levels[n];
    const r = Math.min(Math.floor(row / level.down + 1e-9), level.rows - 1);
    const c = Math.min(Math.floor(column / level.across + 1e-9), level.columns - 1);
    const [i, j] = [Math.floor(r / TILE), Math.floor(c / TILE)];
    if (!field.has(n, i, j)) continue;
    const values = await field.tile(n, i, j);
    const wide = tileSize(level, i, j)[1];
    const value = values[(r - i * TILE) * wide + (c - j * TILE)];
    return { value, down: level.down, across: level.across };
  }
  return null;
}

// All weights of a query: { values, known, exact }. If the file has no exact ones, a pooled cell is
// spread evenly over its keys, and `known` says so.
async function rowOf(field, t) {
  const kept = await field.row(t);
  const known = new Uint8Array(field.S).fill(kept ? 1 : 0);
  if (kept) return { values: kept, known, exact: true };
  const values = new Float32Array(field.S);
  const filled = new Uint8Array(field.S);
  for (let n = field.levels.length - 1; n >= 0 && filled.includes(0); n--) {
    const level = field.levels[n];
    const r = Math.min(Math.floor(t / level.down + 1e-9), level.rows - 1);
    const i = Math.floor(r / TILE);
    const exact = level.down === 1 && level.across === 1;
    for (let j = 0; j < tilesAcross(level); j++) {
      if (!field.has(n, i, j)) continue;
      const wide = tileSize(level, i, j)[1];
      const tile = (await field.tile(n, i, j)).subarray((r - i * TILE) * wide);
      const last = Math.min(field.S, Math.ceil((j * TILE + wide) * level.across));
      for (let c = Math.floor(j * TILE * level.across); c < last; c++) {
        if (filled[c]) continue;
        const at = Math.min(Math.floor(c / level.across + 1e-9) - j * TILE, wide - 1);
        if (at < 0) continue;
        values[c] = tile[at] / level.across;
        filled[c] = 1;
        known[c] = exact ? 1 : 0;
      }
    }
  }
  return { values, known, exact: !known.includes(0) };
}
