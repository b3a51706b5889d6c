// The layout of the stage: the size of cells, the level that suits it, and the tiles in view.
const LARGEST_CELL = 48; // pixels of a cell
const GAP = 28; // pixels between maps
const NARROW = 560; // pixels; in less room several maps stand below each other

// Rows and columns for every map: models may tokenise a text into more or fewer pieces.
function holdingAll(panes) {
  const most = (side) => Math.max(...panes.map((pane) => pane[side].length));
  return [most("queries"), most("keys")];
}

// Cells as large as the room allows, square unless one side is far longer than the other.
function layStage(room, show, zoom) {
  const plain = layWith(room, show, zoom, [false, false]);
  // Where cells are too small for every word, some are left out and the others numbered.
  const numbered = [plain.down, plain.across].map((size) => size / zoom < READABLE);
  return numbered.includes(true) ? layWith(room, show, zoom, numbered) : plain;
}
function layWith(room, { panes, queries }, zoom, numbered) {
  const [rows, columns] = holdingAll(panes);
  const stacked = panes.length > 1 && room < NARROW;
  const named = panes.filter((pane, n) => n === 0 || pane.queries !== queries);
  const left = Math.max(...named.map((pane) => roomFor(pane.queries, 150, numbered[0])));
  const most = clamp(innerHeight * 0.7, 300, 660);
  const taken = stacked ? left : left * named.length + GAP * (panes.length - 1);
  const wide = Math.max(80, (room - taken) / (stacked ? 1 : panes.length) - 2);
  let across = Math.min(wide / columns, LARGEST_CELL);
  let down = Math.min(most / rows, LARGEST_CELL);
  const square = Math.min(across, down);
  across = Math.min(across, Math.max(square, 7)) * zoom;
  down = Math.min(down, Math.max(square, 7)) * zoom;
  const full = [Math.min(wide, across * columns), Math.min(most, down * rows)];
  const level = panes.every((pane) => longest(pane.keys) + 4 <= across);
  const top = level ? 26 : Math.max(...panes.map((pane) => roomFor(pane.keys, 120, numbered[1])));
  return { left, top, level, stacked, across, down, wide: full[0], high: full[1] };
}

// The finest level whose cells are not smaller than the screen's: finer ones would only fade.
function levelFor(field, { across, down }) {
  const seen = (level) =>
    Math.max(level.across * across, level.down * down) * devicePixelRatio >= 0.99;
  return Math.max(0, field.levels.findLastIndex(seen));
}

function* inView(level, view, { wide, high, across, down }) {
  const [tall, broad] = [TILE * level.down * down, TILE * level.across * across];
  const [top, left] = [view.row * down, view.column * across];
  const last = (start, room, size, count) => Math.min(count - 1, Math.floor((start + room) / size));
  for (let i = Math.floor(top / tall); i <= last(top, high, tall, tilesDown(level)); i++)
    for (let j = Math.floor(left / broad); j <= last(left, wide, broad, tilesAcross(level)); j++)
      yield [i, j];
}
