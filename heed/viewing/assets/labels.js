// Words along the sides of a map: a few elements that are reused, not one for each of 32,768.
const READABLE = 13; // pixels from one label to the next

function makeLabels(axis) {
  const node = element("div", { class: `labels ${axis}`, "aria-hidden": "true" });
  const pool = [];

  // Every word if they fit; otherwise every n-th, with its number.
  function put(words, from, size, room, chosen, level) {
    const every = niceStep(READABLE / size);
    // n is chosen so that the numbers are round.
    const first = Math.ceil((Math.floor(from) + 1) / every) * every - 1;
    const last = Math.min(words.length - 1, Math.floor(from + room / size));
    node.classList.toggle("level", level);
    let used = 0;
    const edge = every > 1 ? 6 : 0;
    const write = (n) => {
      const middle = (n + 0.5 - from) * size;
      const inside = clamp(middle, edge, room - edge);
      const off = Math.abs(middle - inside);
      if (off && (n !== chosen || off > edge)) return;
      place(used++, words[n], n, inside, every > 1, n === chosen, level);
    };
    // The chosen word is always there, and its neighbours leave it room.
    const apart = (n) => chosen === null || Math.abs(n - chosen) * size >= READABLE;
    for (let n = first; n <= last; n += every) if (every === 1 || apart(n)) write(n);
    if (every > 1 && chosen !== null && chosen < words.length) write(chosen);
    for (const spare of pool.slice(used)) spare.node.hidden = true;
  }
  function place(i, word, n, middle, numbered, chosen, level) {
    pool[i] ??= newLabel();
    const { node: label, text, number } = pool[i];
    if (text.textContent !== short(word)) text.textContent = short(word);
    label.title = word;
    const place = `${n + 1}`; // which is all there is to say of a position without a word
    number.textContent = numbered && word !== place ? place : "";
    label.hidden = false;
    label.classList.toggle("chosen", chosen);
    label.classList.toggle("standing", !level && stands(short(word)));
    label.style[axis === "row" ? "top" : "left"] = `${middle}px`;
  }
  function newLabel() {
    const [text, number] = [element("bdi"), element("small")];
    const label = element("span", {}, number, text);
    node.append(label);
    return { node: label, text, number };
  }
  return { node, put };
}

// The least of 1, 2, 5, 10, 20, 50 … that is enough.
function niceStep(least) {
  if (least <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least);
}

// Paths without the parts that all of them begin and end with.
function distinct(names) {
  if (names.length < 2) return names;
  const paths = names.map((name) => name.split("."));
  const least = Math.min(...paths.map((path) => path.length)) - 1;
  const all = (part) => paths.every((path) => path.at(part) === paths[0].at(part));
  let [start, end] = [0, 0];
  while (start < least && all(start)) start += 1;
  while (end < least - start && all(-1 - end)) end += 1;
  return paths.map((path) => path.slice(start, path.length - end).join("."));
}

// The width of the longest of the first words.
const longest = (words) =>
  Math.max(0, ...words.slice(0, 400).map((word) => extent(short(word), 12.5)));

// The room that it takes; the rest is cut.
function roomFor(words, most, numbered) {
  const long = longest(words);
  const number = numbered ? extent(`${words.length} `, 11) : 0;
  return clamp(long * 1.08 + number + (number ? 18 : 10), 24, most);
}
