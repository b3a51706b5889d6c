// A choice of the page's language.
function languages(host) {
  const node = switchOf(phrased("Language"), Object.entries(LANGUAGES), spoken, (language) => {
    document.dispatchEvent(new CustomEvent("speak", { detail: language }));
    node.setAttribute("aria-label", phrased("Language"));
    host.closest("main").lang = language;
  });
  node.classList.add("language");
  host.append(node);
}
document.querySelectorAll(".languages").forEach(languages);

// A slider over the steps of a training: every map and text below shows the chosen step.
function scrub(host) {
  const steps = host.dataset.steps.split(" ").map(Number);
  const slider = element("input", {
    type: "range",
    min: 0,
    max: steps.length - 1,
    value: steps.length - 1,
    "aria-label": phrased("step"),
  });
  const said = element("output", {});
  // A map that was not saved at this step shows the one before it.
  function show() {
    const step = steps[slider.value];
    said.textContent = phrased(`step ${step}`);
    slider.setAttribute("aria-valuetext", said.textContent);
    host.querySelectorAll("figure.map").forEach((figure) => {
      const select = figure.querySelector("select");
      const before = figure.dataset.steps.split(" ").filter((each) => Number(each) <= step);
      const place = Math.max(0, before.length - 1);
      if (!select || select.selectedIndex === place) return;
      select.selectedIndex = place;
      select.dispatchEvent(new Event("change"));
    });
    host.querySelectorAll("[data-step]").forEach((text) => {
      text.hidden = Number(text.dataset.step) !== step;
    });
  }
  slider.hidden = steps.length === 1; // there is no choice
  slider.addEventListener("input", show);
  host.prepend(element("label", { class: "slider" }, slider, said));
  // Maps are drawn when they come near: a new one gets the chosen step.
  const figures = host.querySelectorAll("figure.map");
  const watch = new MutationObserver(() => {
    speakAround();
    show();
  });
  figures.forEach((figure) => watch.observe(figure, { childList: true }));
  document.addEventListener("speak", () => {
    slider.setAttribute("aria-label", phrased("step"));
    show();
  });
  show();
}
document.querySelectorAll(".scrub").forEach(scrub);
document.documentElement.dataset.ready = "yes";
