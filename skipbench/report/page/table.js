"use strict";
// A table that is filtered and sorted. Addresses: #filter=WORDS&model=NAME&sort=COLUMN (once up, twice down).
const table = document.getElementById("runs");
const rows = [...table.tBodies[0].rows];
const controls = document.getElementById("controls");
const heads = [...table.tHead.rows[0].cells];
const column = name => heads.findIndex(h => h.textContent === name);
const words = new Map(rows.map(row => [row, [...row.cells].map(c => c.textContent).join(" ").toLowerCase()]));
const chosen = [...controls.querySelectorAll("select")].map(s => s.name);

function filter() {
  const wanted = controls.elements.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const fits = chosen.every(name => {
      const value = controls.elements[name].value;
      return !value || row.cells[column(name)].textContent === value;
    }) && wanted.every(word => words.get(row).includes(word));
    row.hidden = !fits;
    shown += fits;
  }
  document.getElementById("count").textContent = `${shown} of ${rows.length} runs`;
}

function sort(index) {
  const up = heads[index].getAttribute("aria-sort") !== "ascending";
  heads.forEach(h => h.removeAttribute("aria-sort"));
  heads[index].setAttribute("aria-sort", up ? "ascending" : "descending");
  const numeric = heads[index].classList.contains("number");
  const value = row => numeric ? Number(row.cells[index].dataset.value ?? NaN) : row.cells[index].textContent;
  const ordered = [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (numeric && (isNaN(x) || isNaN(y))) return isNaN(x) - isNaN(y); // what is missing stays last
    const order = numeric ? x - y : x.localeCompare(y, "en", {numeric: true});
    return up ? order : -order;
  });
  table.tBodies[0].append(...ordered);
}

function recall(wanted) {
  for (const name of [...chosen, "filter"]) if (wanted.has(name)) controls.elements[name].value = wanted.get(name);
  for (const name of wanted.getAll("sort")) if (column(name) >= 0) sort(column(name));
  filter();
}

function remember() {
  const kept = [...new FormData(controls)].filter(([, value]) => value);
  history.replaceState(null, "", "#" + new URLSearchParams(kept));
  filter();
}

heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => sort(i)));
controls.addEventListener("input", remember);
controls.addEventListener("submit", event => event.preventDefault());
