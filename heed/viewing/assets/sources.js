// The fields in view: those of the chosen side and hypothesis, and of the one to compare with.
function makeSources(data, store, state) {
  const fields = new Map();
  const takesOf = (side) => data.takes.filter((take) => take.side === side);
  const takeOf = (side) => takesOf(side)[Math.min(state.take, takesOf(side).length - 1)];
  const take = () => takeOf(state.side);
  const layer = () => take().layers[state.place];
  const wordsOf = (n) => data.words[n];
  const once = (key, make) => fields.get(key) ?? (fields.set(key, make()), fields.get(key));

  // A head, or the mean of all if none is named.
  function fieldIn(of, place, h) {
    const { heads } = of.layers[place];
    const mean = () => meanField(heads.map((_, n) => fieldIn(of, place, n)));
    const make = () => (h === null ? mean() : headField(heads[h], store));
    return once(`${data.takes.indexOf(of)} ${place} ${h}`, make);
  }
  // The matching head of the other side: by its layer's name, otherwise by its place.
  function twin(place, h) {
    if (state.against < 0) return null;
    const other = takeOf(state.against);
    const named = other.layers.findIndex((each) => each.name === take().layers[place].name);
    const at = named >= 0 ? named : Math.min(place, other.layers.length - 1);
    const last = other.layers[at].heads.length - 1;
    return { take: other, place: at, h: h === null ? null : Math.min(h, last) };
  }
  // Nothing if there is none to compare with, or its words differ.
  function difference(place, h) {
    const other = twin(place, h);
    if (!other) return null;
    const [a, b] = [take().layers[place], other.take.layers[other.place]];
    if (a.queries !== b.queries || a.keys !== b.keys) return null;
    const pair = [fieldIn(take(), place, h), fieldIn(other.take, other.place, other.h)];
    const [mine, theirs] = [take(), other.take].map((each) => data.takes.indexOf(each));
    const key = `${mine} ${place} ${h} − ${theirs} ${other.place}`;
    return once(key, () => differenceField(...pair));
  }
  const thumb = (place, h) => difference(place, h) ?? fieldIn(take(), place, h);

  // The name of the chosen side; of a difference, that of both in their order.
  const sideName = () => (data.sides.length > 1 ? data.sides[state.side] : "");
  const apartName = () => `${data.sides[state.side]} − ${data.sides[state.against]}`;
  const thumbName = () => (difference(state.place, state.h) ? apartName() : sideName());

  // The maps of the large view side by side, each with its words.
  function panes() {
    const pane = (name, field, { queries, keys }) => {
      return { name, field, queries: wordsOf(queries), keys: wordsOf(keys) };
    };
    const mine = fieldIn(take(), state.place, state.h);
    const other = twin(state.place, state.h);
    if (!other) return [pane(data.sides[state.side], mine, layer())];
    const theirs = fieldIn(other.take, other.place, other.h);
    const key = `${state.side} ${state.against} ${state.take} ${state.place} ${state.h}`;
    const [a, b] = once(key, () => [besides(mine, theirs), besides(theirs, mine)]);
    const list = [
      pane(data.sides[state.side], a, layer()),
      pane(data.sides[state.against], b, other.take.layers[other.place]),
    ];
    const apart = difference(state.place, state.h);
    return apart ? [...list, pane(apartName(), apart, layer())] : list;
  }
  return { take, takesOf, layer, wordsOf, panes, thumb, sideName, thumbName };
}
