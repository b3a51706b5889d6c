// The selection in words: one line that follows the pointer, the words a query attends to, and a
// table with the content of the map.
const STRIP = 400; // keys; up to so many are all written out, tinted
const TOLD = 100; // rows of the table at a time

// Whether a node has no newer request: a slower, older result must not overwrite it.
const turns = new WeakMap();
function turnOf(node) {
  const mine = (turns.get(node) ?? 0) + 1;
  turns.set(node, mine);
  return () => turns.get(node) === mine;
}

// query ← key, weight; for every map if there are several.
async function readout(node, { panes, queries, keys, say }, row, column) {
  const mine = turnOf(node);
  if (row === null && column === null) return node.replaceChildren(say("hint"));
  if (row === null || column === null)
    return node.replaceChildren(bold(queries[row] ?? keys[column]));
  const fields = panes.filter(({ field }) => row < field.T && column < field.S);
  const cells = await Promise.all(fields.map((pane) => cellOf(pane.field, row, column)));
  if (!mine()) return;
  const numbers = cells.flatMap((found, n) => {
    if (!found) return [];
    const name = fields.length > 1 ? `${fields[n].name} ` : "";
    const pooled = found.down > 1 || found.across > 1;
    const size = [found.down, found.across].map((x) => Math.round(x));
    const how = pooled ? ` (${say("pooled", ...size)})` : "";
    const value = found.value < 0 ? `−${said(-found.value, 3)}` : said(found.value, 3);
    return [element("span", { class: "number" }, name, element("b", {}, value), how)];
  });
  const places = ` ${say("query")} ${row + 1}, ${say("key")} ${column + 1}`;
  const pair = element("span", {}, bold(queries[row]), " ← ", bold(keys[column]));
  node.replaceChildren(pair, ...numbers, element("span", { class: "places" }, places));
}
const bold = (text) => element("b", { title: text }, element("bdi", {}, short(text)));

// The keys as running text, darker for larger weights of the chosen query.
async function strip(node, { field, queries, keys, contrast, side, say }, row, choose) {
  const mine = turnOf(node);
  const weights = row === null ? null : await rowOf(field, row);
  if (!mine()) return;
  if (!weights) return node.replaceChildren();
  // A row of equal weights must not be dark everywhere.
  const most = weights.values.reduce((a, b) => Math.max(a, b), 0.2);
  const sentence = woven(say("looksAt", "\0"), bold(queries[row]));
  const whose = side ? [element("bdi", {}, side), ": "] : [];
  const about = element("p", { class: "about" }, ...whose, ...sentence);
  const chip = (c) => {
    const share = weights.values[c] / most;
    const about = weights.known[c] ? "" : "≈ ";
    const look = { class: "chip", title: `${c + 1}: ${about}${said(weights.values[c], 3)}` };
    const chip = element("span", look, element("bdi", {}, short(keys[c])));
    const mix = Math.round(100 * CONTRASTS[contrast](share));
    chip.style.setProperty("--share", `${mix}%`);
    chip.classList.toggle("heavy", mix > 65);
    chip.addEventListener("pointerenter", () => choose(row, c));
    return chip;
  };
  let order = keys.map((_, c) => c);
  if (keys.length > STRIP) {
    order = heaviest(weights.values, 24);
    about.append(` (${say("heaviest", keys.length)})`);
  }
  if (!weights.exact) about.append(" · ", element("small", {}, say("pooledRow")));
  const chips = order.flatMap((c) => [chip(c), " "]);
  const text = element("p", { class: "chips", dir: "auto" }, ...chips);
  node.replaceChildren(about, text, wholeToken(queries[row], say));
}
// A sentence with one node in it.
function woven(text, node) {
  const [before, after] = text.split("\0");
  return [before, node, after ?? ""];
}
// A shortened token can be read as a whole.
function wholeToken(word, say) {
  if (short(word) === word) return "";
  const letters = say("letters", [...word].length.toLocaleString());
  const summary = element("summary", {}, `${say("whole")} (${letters})`);
  const text = element("pre", { dir: "auto" });
  const details = element("details", { class: "whole" }, summary, text);
  details.addEventListener("toggle", () => (text.textContent = details.open ? word : ""));
  return details;
}

// The map as a table for screen readers: the largest weights of each query.
function asTable({ field, queries, keys, name, side, say }) {
  const body = element("tbody");
  const caption = element("caption", {}, say("tableOf", side ? `${side}: ${name}` : name));
  const head = [say("query"), `${say("key")} (${say("weight")})`].map((text) =>
    element("th", { scope: "col" }, text),
  );
  const heads = element("thead", {}, element("tr", {}, ...head));
  const table = element("table", {}, caption, heads, body);
  const range = element("span", { "aria-live": "polite" });
  const details = element("details", { class: "as-table" }, element("summary", {}, say("table")));
  let first = 0;
  async function fill() {
    const last = Math.min(queries.length, first + TOLD);
    const rows = [];
    for (let t = first; t < last; t++) rows.push(await told(t));
    body.replaceChildren(...rows);
    range.textContent = say("rowsOf", first + 1, last, queries.length);
  }
  async function told(t) {
    const weights = await rowOf(field, t);
    const best = heaviest(weights.values, 3);
    const list = best.flatMap((c, n) => {
      const about = weights.known[c] ? " " : " ≈ ";
      return [n ? ", " : "", bold(keys[c]), `${about}${said(weights.values[c])}`];
    });
    const query = element("th", { scope: "row" }, bold(queries[t]));
    return element("tr", {}, query, element("td", {}, ...list));
  }
  const turn = (by) => {
    const button = element("button", { type: "button" }, by < 0 ? "←" : "→");
    button.setAttribute("aria-label", say(by < 0 ? "before" : "after"));
    button.addEventListener("click", () => {
      first = clamp(first + by * TOLD, 0, Math.max(0, queries.length - 1));
      fill();
    });
    return button;
  };
  const arrows = queries.length > TOLD ? [turn(-1), turn(1)] : [];
  const scroll = element("div", { class: "scroll" }, table);
  details.append(element("p", { class: "turns" }, ...arrows, range), scroll);
  details.addEventListener("toggle", () => details.open && !body.firstChild && fill());
  return details;
}

function heaviest(values, count) {
  const best = [];
  values.forEach((value, c) => {
    if (value <= 0 || (best.length === count && value <= values[best[count - 1]])) return;
    best.push(c);
    best.sort((a, b) => values[b] - values[a]);
    if (best.length > count) best.pop();
  });
  return best;
}
