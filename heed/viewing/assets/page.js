// Tables: a click on a heading sorts, a second one reverses the order; blanks stay last.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) =>
    head.querySelector("button").addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const up = now ? now === "descending" : head.dataset.first !== "down";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const compare = head.classList.contains("number") ? byNumber : byText;
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort(compare(place, up ? 1 : -1)));
    }),
  );
}
const byText = (place, sign) => (a, b) =>
  sign * a.cells[place].textContent.localeCompare(b.cells[place].textContent);
const byNumber = (place, sign) => (a, b) => {
  const [x, y] = [a, b].map((row) => row.cells[place].dataset.value);
  return x === "" || y === "" ? (x === "") - (y === "") : sign * (x - y);
};

document.querySelectorAll("table.sortable").forEach(sortable);
const waiting = new Set(document.querySelectorAll("figure.map"));
const now = (host) => {
  if (waiting.delete(host)) {
    seen.unobserve(host);
    build(host);
  }
};
const seen = new IntersectionObserver(
  (all) => all.filter((e) => e.isIntersecting).forEach((e) => now(e.target)),
  { rootMargin: "900px" },
);
waiting.forEach((host) => {
  host.style.minHeight = `${clamp(120 + 22 * host.dataset.rows, 160, 720)}px`;
  seen.observe(host);
});
// Maps are drawn when they come near, those in view at once, and all of them for printing.
[...waiting].filter((host) => host.getBoundingClientRect().top < innerHeight).forEach(now);
addEventListener("beforeprint", () => [...waiting].forEach(now));
