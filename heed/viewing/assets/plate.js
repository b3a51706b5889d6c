// One map of the stage: its canvases, the words along its sides, and the pictures of its tiles.
// `view` has the first row and column, `lay` the sizes.
function makePlate(named, arrived) {
  const [map, over] = [element("canvas"), element("canvas", { class: "over" })];
  const [rows, columns] = [named ? makeLabels("row") : null, makeLabels("column")];
  const name = element("div", { class: "pane-name" });
  const box = element("div", { class: "box" }, map, over);
  const sides = [columns.node, ...(named ? [rows.node] : [])];
  const node = element("div", { class: "pane" }, name, ...sides, box);
  const pictures = new Map();
  let [field, contrast, look] = [null, "", ""];

  function resize(lay, alone) {
    const { left, top, wide, high } = lay;
    node.style.gridTemplateColumns = named ? `${left}px ${wide}px` : `${wide}px`;
    columns.node.style.height = `${top}px`;
    name.hidden = alone;
    for (const canvas of [map, over]) {
      canvas.width = Math.round(wide * devicePixelRatio);
      canvas.height = Math.round(high * devicePixelRatio);
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${high}px`;
    }
  }
  function clean(canvas, { wide, high }) {
    const pen = canvas.getContext("2d");
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    pen.clearRect(0, 0, wide, high);
    return pen;
  }

  function draw(next, curve, view, lay) {
    const seen = `${curve} ${darkness.matches}`;
    if (next !== field || seen !== look) pictures.clear();
    [field, contrast, look] = [next, curve, seen];
    const pen = clean(map, lay);
    pen.save();
    pen.beginPath();
    const [left, top] = [-view.column * lay.across, -view.row * lay.down];
    pen.rect(left, top, field.S * lay.across, field.T * lay.down);
    pen.clip();
    const wanted = levelFor(field, lay);
    for (let n = 0; n <= wanted; n++) {
      // Coarse levels are drawn below missing finer tiles; those far below are hidden anyway.
      if (n && n < wanted - 2) continue;
      for (const [i, j] of inView(field.levels[n], view, lay)) drawTile(pen, n, i, j, view, lay);
    }
    pen.restore();
    if (lay.across >= 11 && lay.down >= 11) rule(pen, view, lay);
    if (lay.across >= 26 && lay.down >= 18) number(pen, view, lay);
  }
  function drawTile(pen, n, i, j, view, lay) {
    const image = picture(n, i, j);
    if (!image) return;
    const level = field.levels[n];
    const [across, down] = [level.across * lay.across, level.down * lay.down];
    pen.imageSmoothingEnabled = across * devicePixelRatio < 1;
    const x = j * TILE * across - view.column * lay.across;
    const y = i * TILE * down - view.row * lay.down;
    pen.drawImage(image, x, y, image.width * across, image.height * down);
  }
  // A tile's picture, or nothing while it is being decoded.
  function picture(n, i, j) {
    if (!field.has(n, i, j)) return null;
    const key = `${n} ${i} ${j}`;
    const level = field.levels[n];
    const found = pictures.get(key);
    if (found && found.high === level.high) return found.image;
    const make = (values) => {
      const [size, { high }] = [tileSize(level, i, j), level];
      const image = paintTile(values, ...size, high, field.signed, contrast);
      pictures.set(key, { image, values, high });
      return image;
    };
    if (found?.values) return make(found.values);
    if (found) return null;
    pictures.set(key, { high: -1 });
    const [asked, seen] = [field, look];
    field.tile(n, i, j).then((values) => {
      if (field !== asked || look !== seen) return;
      make(values);
      arrived();
    });
    return null;
  }

  // Thin lines between cells that are large enough.
  function rule(pen, view, { wide, high, across, down }) {
    pen.fillStyle = getComputedStyle(box).backgroundColor;
    const thick = Math.min(across, down) < 20 ? 1 : 2;
    const line = (n, from, size) => Math.round((n - from) * size) - 1;
    for (let c = Math.ceil(view.column); (c - view.column) * across < wide && c <= field.S; c++)
      pen.fillRect(line(c, view.column, across), 0, thick, high);
    for (let r = Math.ceil(view.row); (r - view.row) * down < high && r <= field.T; r++)
      pen.fillRect(0, line(r, view.row, down), wide, thick);
  }
  // The weights as numbers, in cells with room for them.
  function number(pen, view, lay) {
    const n = field.levels.length - 1;
    const level = field.levels[n];
    if (level.down > 1 || level.across > 1) return;
    pen.font = `11px ${SANS}`;
    pen.textAlign = "center";
    for (const [i, j] of inView(level, view, lay)) {
      const wide = tileSize(level, i, j)[1];
      pictures.get(`${n} ${i} ${j}`)?.values?.forEach((value, at) => {
        if (Math.abs(value) < 0.005) return;
        const [r, c] = [i * TILE + Math.floor(at / wide), j * TILE + (at % wide)];
        const [x, y] = [(c + 0.5 - view.column) * lay.across, (r + 0.5 - view.row) * lay.down];
        pen.fillStyle = inkOn(placeOf(value, level.high, field.signed, contrast), field.signed);
        pen.fillText(value < 0 ? `−${figure(-value)}` : figure(value), x, y + 4);
      });
    }
  }

  // The chosen row and column, the steps that are not written yet, and the words.
  function mark({ queries, keys }, [row, column], upto, view, lay) {
    const pen = clean(over, lay);
    if (upto !== null) {
      pen.fillStyle = getComputedStyle(box).backgroundColor;
      pen.globalAlpha = 0.86;
      pen.fillRect(0, (upto + 1 - view.row) * lay.down, lay.wide, lay.high + 1e6);
    }
    pen.globalAlpha = Math.min(lay.across, lay.down) < 6 ? 0.4 : 1;
    const x = Math.round((column - view.column) * lay.across) - 0.5;
    const y = Math.round((row - view.row) * lay.down) - 0.5;
    const [broad, tall] = [lay.across, lay.down].map((size) => (size < 6 ? 0 : size));
    const frame = () => {
      if (row !== null) pen.strokeRect(-2, y, lay.wide + 4, tall);
      if (column !== null) pen.strokeRect(x, -2, broad, lay.high + 4);
    };
    // A line in the colour of the words alone would be lost on dark cells.
    [pen.strokeStyle, pen.lineWidth] = [getComputedStyle(box).backgroundColor, 3];
    frame();
    [pen.strokeStyle, pen.lineWidth] = [getComputedStyle(node).color, 1];
    frame();
    pen.globalAlpha = 1;
    rows?.put(queries, view.row, lay.down, lay.high, row, false);
    columns.put(keys, view.column, lay.across, lay.wide, column, lay.level);
  }
  return { node, box, name, resize, draw, mark };
}
