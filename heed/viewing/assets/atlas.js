// One atlas: the choices, and what must be redrawn after each. All other files only draw.
function buildAtlas(host) {
  const data = JSON.parse(host.querySelector("script.index").textContent);
  const store = makeStore(host.querySelector("script.store").textContent);
  const state = {
    language: data.language,
    side: 0,
    against: data.against,
    take: 0,
    kind: "all",
    place: data.opens ?? 0,
    h: data.opens === null ? 0 : null,
    row: null,
    column: null,
    mode: "map",
    contrast: null,
    step: null,
  };
  let say, parts;

  const sources = makeSources(data, store, state);
  const { take, takesOf, layer, panes, wordsOf, sideName, thumbName } = sources;
  if (layer().heads.length === 1) state.h = 0;
  const isWritten = () => take().written && layer().queries === take().layers.at(-1).queries;
  const nameOf = (it, h) => (h === null ? say("meanName", it.name) : say("headName", it.name, h));

  const contrast = () => {
    const { T, S } = layer().heads[0];
    return state.contrast ?? (Math.max(T, S) > 64 ? "root" : "linear");
  };
  function shown() {
    return {
      panes: panes(),
      name: nameOf(layer(), state.h),
      side: sideName(),
      queries: wordsOf(layer().queries),
      keys: wordsOf(layer().keys),
      chosen: [state.row, state.column],
      contrast: contrast(),
      upto: isWritten() ? state.step : null,
      say,
    };
  }

  function choose(row, column) {
    if (row === state.row && column === state.column) return;
    const turned = row !== state.row;
    [state.row, state.column] = [row, column];
    parts.stage.chosen(row, column);
    tell(turned);
    if (state.mode === "lines" && turned) drawLarge();
  }
  function tell(turned) {
    const now = shown();
    readout(parts.readout, now, state.row, state.column);
    if (turned) strip(parts.strip, { ...now, field: now.panes[0].field }, state.row, choose);
  }
  // A key press while the lines are in view.
  function stepLines(event) {
    const now = shown();
    const next = nextCell(event, now, AROUND / 2);
    if (!next) return;
    choose(...next);
    drawLarge(); // also where only the key is another
    event.preventDefault();
  }
  function pick(place, h) {
    Object.assign(state, { place, h });
    render();
  }
  function step(n) {
    [state.step, state.row] = [n, n];
    render();
  }
  function turn(changes) {
    Object.assign(state, changes);
    state.place = Math.min(state.place, take().layers.length - 1);
    const heads = layer().heads.length;
    if (state.h !== null) state.h = Math.min(state.h, heads - 1);
    if (state.h === null && heads === 1) state.h = 0;
    renderAll();
  }

  // Update what depends on the chosen head.
  function render() {
    const { queries, keys, name } = shown();
    const threads = say("threads", name, queries.length, keys.length);
    parts.threads.setAttribute("aria-label", threads);
    if (state.row !== null && state.row >= queries.length) state.row = null;
    if (state.column !== null && state.column >= keys.length) state.column = null;
    parts.steps.node.hidden = !isWritten();
    if (isWritten()) {
      state.step = clamp(state.step ?? queries.length - 1, 0, queries.length - 1);
      parts.steps.set(queries, state.step);
    }
    const key = `${state.place} ${state.h}`;
    parts.thumbs.mark(key);
    parts.figures.mark(key);
    parts.name.replaceChildren(element("bdi", {}, nameOf(layer(), state.h)));
    parts.kind.textContent = say(layer().kind);
    parts.heads.textContent = thumbName() ? say("headsOf", thumbName()) : say("heads");
    drawLarge();
    tell(true);
    const now = shown();
    parts.table.replaceChildren(asTable({ ...now, field: now.panes[0].field }));
  }
  function drawLarge() {
    const now = shown();
    const lines = state.mode === "lines";
    parts.stage.node.hidden = lines;
    parts.threads.hidden = !lines;
    parts.mapTools.hidden = lines;
    parts.apart.textContent = now.panes.length === 2 ? say("noDifference") : "";
    if (lines) {
      const each = now.panes.filter((pane) => !pane.field.signed);
      const titled = (pane) => ({ ...pane, title: each.length > 1 ? pane.name : "" });
      const views = each.map((pane) => drawThreads({ ...now, ...titled(pane), choose }));
      parts.threads.replaceChildren(...views);
    } else parts.stage.set(now);
  }
  function moved(part) {
    parts.thumbs.frame(part);
    drawKey();
  }
  function drawKey() {
    const fields = panes().map(({ field }) => field);
    const levelOf = (field) => field.levels[levelFor(field, parts.stage.view())];
    const size = ["down", "across"].map((side) => Math.round(levelOf(fields[0])[side]));
    const how = element("span", { class: "how" });
    if (Math.max(...size) > 1) how.textContent = say("pooled", ...size);
    // Maps share one scale, and a difference has its own.
    const scales = [fields[0], ...fields.filter((field) => field.signed)];
    const keys = scales.map((field) =>
      element("span", { class: "scale" }, ...keyOf(Boolean(field.signed), levelOf(field).high, contrast())),
    );
    parts.key.replaceChildren(how, ...keys);
  }
  const layers = () =>
    take()
      .layers.map((each, place) => ({ layer: each, place }))
      .filter(({ layer: each }) => state.kind === "all" || each.kind === state.kind);
  // Update what depends on the side, the hypothesis and the language.
  function renderAll() {
    if (!layers().some(({ place }) => place === state.place)) {
      state.place = layers()[0].place;
      state.h = Math.min(state.h ?? 0, layer().heads.length - 1);
    }
    const controls = () => [...parts.tools.querySelectorAll("select, button")];
    const held = controls().indexOf(document.activeElement);
    parts.tools.replaceChildren(...tools());
    if (held >= 0) controls()[held]?.focus(); // keep the keyboard's focus
    parts.thumbs.set(layers(), contrast());
    parts.figures.set(layers(), sideName());
    render();
  }
  function tools() {
    const list = [];
    const sides = data.sides.map((name, n) => [n, name]);
    const against = [[-1, say("nothing")], ...sides.filter(([n]) => n !== state.side)];
    if (sides.length > 1) {
      const other = (n) => (n === state.against ? state.side : state.against);
      const pickSide = (n) => turn({ side: Number(n), against: other(Number(n)) });
      const pickOther = (n) => turn({ against: Number(n) });
      list.push(picker(say("side"), sides, state.side, pickSide));
      list.push(picker(say("against"), against, state.against, pickOther));
    }
    const takes = takesOf(state.side);
    const told = ({ name, score }, n) =>
      [name || `${n + 1}`, ...(score === null ? [] : [say("score", score.toFixed(2))])].join(" · ");
    const options = takes.map((each, n) => [n, told(each, n)]);
    const chosen = Math.min(state.take, takes.length - 1);
    const pickTake = (n) => turn({ take: Number(n) });
    if (takes.length > 1) list.push(picker(say("take"), options, chosen, pickTake));
    const kinds = [...new Set(take().layers.map((each) => each.kind))];
    if (kinds.length > 1) {
      const all = ["all", ...kinds].map((kind) => [kind, say(kind)]);
      list.push(switchOf(say("kinds"), all, state.kind, (kind) => turn({ kind })));
    }
    const speak = (language) => {
      Object.assign(state, { language });
      open(true);
      document.dispatchEvent(new CustomEvent("speak", { detail: language }));
    };
    list.push(switchOf(say("language"), Object.entries(LANGUAGES), state.language, speak));
    list.at(-1).classList.add("language");
    return list;
  }

  // The page in the chosen language; the keyboard's focus stays.
  function open(again) {
    say = speaker(state.language);
    const view = ["map", "lines"].map((mode) => [mode, say(mode)]);
    const curves = Object.keys(CONTRASTS).map((name) => [name, say(name)]);
    parts = {
      tools: element("div", { class: "tools" }),
      steps: makeSteps({ say, pick: step }),
      thumbs: makeThumbs({ say, pick, fieldOf: sources.thumb }),
      stage: makeStage({ say, choose, settled: drawKey, moved }),
      figures: makeFigures({ say, pick }),
      name: element("h2"),
      kind: element("span", { class: "kind" }),
      threads: element("div", { class: "thread-views", tabindex: 0, role: "application" }),
      heads: element("h3"),
      key: element("span", { class: "key" }),
      apart: element("span", { class: "note" }),
      readout: element("p", { class: "readout", "aria-live": "polite" }),
      strip: element("div", { class: "strip" }),
      table: element("div"),
    };
    const { stage } = parts;
    const zooms = element("span", { class: "zooms" });
    parts.mapTools = element("span", { class: "map-tools" });
    zooms.append(button(say("zoomOut"), "−", () => stage.zoom(0.5)));
    zooms.append(button(say("zoomIn"), "+", () => stage.zoom(2)));
    zooms.append(button(say("fit"), "⤢", stage.whole));
    const turnView = (mode) => (Object.assign(state, { mode }), drawLarge());
    const turnCurve = (curve) => {
      state.contrast = curve;
      parts.thumbs.set(layers(), contrast());
      drawLarge();
    };
    const curveSwitch = switchOf(say("contrast"), curves, contrast(), turnCurve);
    const viewSwitch = switchOf(say("view"), view, state.mode, turnView);
    parts.mapTools.append(curveSwitch, zooms, parts.key);
    const title = element("div", { class: "title" }, parts.name, parts.kind);
    const tools = element("div", { class: "tools" }, viewSwitch, parts.mapTools);
    const views = [parts.readout, stage.node, parts.threads, parts.apart, parts.strip, parts.table];
    const large = element("div", { class: "large" }, title, tools, ...views);
    parts.threads.addEventListener("keydown", stepLines);
    const side = element("nav", { "aria-label": say("heads") }, parts.heads, parts.thumbs.node);
    const plates = element("div", { class: "plates" }, side, large);
    const lang = { en: "en", zh: "zh-CN" }[state.language];
    const body = element("div", { class: "whole-atlas", lang }, parts.tools, parts.steps.node);
    body.append(plates, parts.figures.node);
    host.querySelector(".whole-atlas")?.remove();
    host.append(body);
    renderAll();
    if (again) body.querySelector(`.language [data-value="${state.language}"]`).focus();
    widths.disconnect();
    widths.observe(large);
  }
  let wide = 0;
  const widths = new ResizeObserver(([{ contentRect }]) => {
    if (state.mode === "map" && contentRect.width !== wide) parts.stage.resize();
    wide = contentRect.width;
  });
  darkness.addEventListener("change", () => {
    parts.thumbs.redraw();
    drawLarge();
  });
  // The whole page has one language.
  document.addEventListener("speak", ({ detail: language }) => {
    if (language === state.language) return;
    Object.assign(state, { language });
    open(false);
  });
  open(false);
}

document.querySelectorAll("section.atlas").forEach(buildAtlas);
