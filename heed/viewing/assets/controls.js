// Controls: a list, a switch, and the steps of a text.
function picker(name, options, chosen, pick) {
  const list = options.map(([value, text]) => element("option", { value }, text));
  const select = element("select", {}, ...list);
  select.value = String(chosen);
  select.addEventListener("change", () => pick(select.value));
  return element("label", { class: "picker" }, element("span", {}, name), select);
}

function switchOf(name, options, chosen, pick) {
  const buttons = options.map(([value, text]) => {
    const button = element("button", { type: "button", "aria-pressed": value === chosen }, text);
    button.dataset.value = value;
    button.addEventListener("click", () => {
      buttons.forEach((each) => each.setAttribute("aria-pressed", each === button));
      pick(value);
    });
    return button;
  });
  return element("span", { class: "switch", role: "group", "aria-label": name }, ...buttons);
}

function button(name, sign, act) {
  const node = element("button", { type: "button", class: "sign", title: name }, sign);
  node.setAttribute("aria-label", name);
  node.addEventListener("click", act);
  return node;
}

// Step by step through a written text, with later words faded.
function makeSteps({ say, pick }) {
  const range = element("input", { type: "range", min: 0, step: 1 });
  range.setAttribute("aria-label", say("step"));
  const count = element("span", { class: "count" });
  const text = element("p", { class: "text", dir: "auto" });
  const by = (n) => () => pick(clamp(Number(range.value) + n, 0, Number(range.max)));
  const [before, after] = [button(say("before"), "←", by(-1)), button(say("after"), "→", by(1))];
  const node = element("div", { class: "steps" }, before, range, after, count, text);
  range.addEventListener("input", () => pick(Number(range.value)));
  function set(words, step) {
    range.max = words.length - 1;
    range.value = step;
    count.textContent = say("stepOf", step + 1, words.length);
    range.setAttribute("aria-valuetext", `${count.textContent}: ${short(words[step])}`);
    const shown = around(words.length, step);
    const spans = shown.flatMap((n) => {
      const look = n === step ? "now" : n > step ? "later" : "";
      const word = element("span", { class: look }, element("bdi", {}, short(words[n])));
      word.addEventListener("click", () => pick(n));
      return [word, " "];
    });
    text.replaceChildren(...(shown[0] > 0 ? ["… "] : []), ...spans);
  }
  return { node, set };
}
