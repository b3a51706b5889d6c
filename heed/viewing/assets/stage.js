// The large map: one field, or several side by side that are moved and zoomed together.
function makeStage({ say, choose, settled, moved }) {
  const node = element("div", { class: "panes", tabindex: 0, role: "application" });
  const view = { zoom: 1, row: 0, column: 0 };
  let show = null; // { panes, queries, keys, chosen, contrast, upto, name }
  let lay = null;
  let plates = [];
  let named = ""; // which of them have their own words
  let waiting = 0;

  function set(next) {
    const same = show && show.queries === next.queries && show.keys === next.keys;
    show = next;
    if (!same) Object.assign(view, { zoom: 1, row: 0, column: 0 });
    const size = [show.queries.length, show.keys.length];
    node.setAttribute("aria-label", say("stage", show.name, ...size));
    resize();
  }
  // A plate for each map; words beside it where those of the first do not stand in its line.
  function setPlates() {
    const own = (pane, n) => lay.stacked || n === 0 || pane.queries !== show.queries;
    const drawn = show.panes.map(own).join();
    if (drawn !== named) {
      plates = show.panes.map((pane, n) => newPlate(own(pane, n)));
      named = drawn;
      node.replaceChildren(...plates.map((plate) => plate.node));
    }
    plates.forEach((plate, n) => plate.name.replaceChildren(show.panes[n].name));
  }
  function newPlate(named) {
    const plate = makePlate(named, () => (settled(), draw()));
    listen(plate.box);
    return plate;
  }

  function resize() {
    lay = layStage(node.clientWidth, show, view.zoom);
    setPlates();
    hold();
    for (const plate of plates) plate.resize(lay, plates.length === 1);
    draw();
  }
  // Keep the view within the map.
  function hold() {
    const last = (count, room, size) => Math.max(0, count - room / size);
    const [rows, columns] = holdingAll(show.panes);
    view.row = clamp(view.row, 0, last(rows, lay.high, lay.down));
    view.column = clamp(view.column, 0, last(columns, lay.wide, lay.across));
  }
  function draw() {
    waiting ||= requestAnimationFrame(() => {
      waiting = 0;
      plates.forEach((plate, n) => plate.draw(show.panes[n].field, show.contrast, view, lay));
      const [rows, columns] = holdingAll(show.panes);
      moved({
        left: view.column / columns,
        top: view.row / rows,
        wide: lay.wide / lay.across / columns,
        high: lay.high / lay.down / rows,
      });
      mark();
    });
  }

  function mark() {
    plates.forEach((plate, n) => plate.mark(show.panes[n], show.chosen, show.upto, view, lay));
  }

  function mayZoom(by) {
    const most = Math.max(1, LARGEST_CELL / Math.min(lay.across / view.zoom, lay.down / view.zoom));
    return clamp(view.zoom * by, 1, most);
  }
  // The place of the chosen cell in pixels, or the middle if it is out of view.
  function middle() {
    const [row, column] = show.chosen;
    const [x, y] = [(column + 0.5 - view.column) * lay.across, (row + 0.5 - view.row) * lay.down];
    const seen = row !== null && column !== null && x > 0 && y > 0 && x < lay.wide && y < lay.high;
    return seen ? [x, y] : [lay.wide / 2, lay.high / 2];
  }
  // Zoom around a place of the map.
  function zoom(by, x = middle()[0], y = middle()[1]) {
    const [row, column] = [view.row + y / lay.down, view.column + x / lay.across];
    view.zoom = mayZoom(by);
    const [wide, high] = [lay.wide, lay.high];
    lay = layStage(node.clientWidth, show, view.zoom);
    view.row = row - (y * lay.high) / high / lay.down;
    view.column = column - (x * lay.wide) / wide / lay.across;
    resize();
  }
  const whole = () => (Object.assign(view, { zoom: 1, row: 0, column: 0 }), resize());

  function reveal(row, column) {
    const [rows, columns] = [lay.high / lay.down, lay.wide / lay.across];
    if (row !== null && (row < view.row || row > view.row + rows - 1)) view.row = row - rows / 2;
    if (column !== null && (column < view.column || column > view.column + columns - 1))
      view.column = column - columns / 2;
    hold();
    draw();
  }

  function listen(box) {
    let held = null;
    const at = (event) => {
      const edge = box.getBoundingClientRect();
      return [event.clientX - edge.left, event.clientY - edge.top];
    };
    const pick = ([x, y]) => {
      const row = Math.floor(view.row + y / lay.down);
      const column = Math.floor(view.column + x / lay.across);
      choose(clamp(row, 0, show.queries.length - 1), clamp(column, 0, show.keys.length - 1));
    };
    box.addEventListener("pointerdown", (event) => {
      held = { at: at(event), row: view.row, column: view.column };
      box.setPointerCapture(event.pointerId);
      pick(held.at); // a finger does not hover
    });
    box.addEventListener("pointerup", () => (held = null));
    box.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      if (held && view.zoom > 1) {
        view.row = held.row - (y - held.at[1]) / lay.down;
        view.column = held.column - (x - held.at[0]) / lay.across;
        hold();
        draw();
      }
      pick([x, y]);
    });
    box.addEventListener("dblclick", (event) => zoom(event.shiftKey ? 0.5 : 2, ...at(event)));
    box.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
        event.preventDefault();
        zoom(2 ** (-event.deltaY / 200), ...at(event));
      },
      { passive: false },
    );
  }
  node.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { "+": 2, "=": 2, "-": 0.5 }[event.key];
    const next = nextCell(event, show, Math.max(1, Math.floor(lay.high / lay.down) - 1));
    if (by) zoom(by);
    else if (event.key === "0") whole();
    else if (next) {
      choose(...next);
      reveal(...next);
    } else return;
    event.preventDefault();
  });
  const chosen = (row, column) => ((show.chosen = [row, column]), mark());
  return { node, set, resize, draw, zoom, whole, chosen, view: () => ({ ...view, ...lay }) };
}

// The query and key that a key press leads to, null for no such key; `page` is how far a page goes.
function nextCell({ key, ctrlKey, metaKey, altKey }, { queries, keys, chosen }, page) {
  if (ctrlKey || metaKey || altKey) return null;
  if (key === "Escape") return [null, null];
  const move = {
    ArrowUp: [-1, 0],
    ArrowDown: [1, 0],
    ArrowLeft: [0, -1],
    ArrowRight: [0, 1],
    PageUp: [-page, 0],
    PageDown: [page, 0],
    Home: [0, -1e9],
    End: [0, 1e9],
  }[key];
  const counts = [queries.length, keys.length];
  const to = (by, n) => clamp((chosen[n] ?? (by > 0 ? -1 : 0)) + by, 0, counts[n] - 1);
  return move ? move.map(to) : null;
}
