// Behind table.js. Addresses beside its own: #run=NAME, or the id of a section.
function filled(element, attributes = {}, ...children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const make = (tag, ...rest) => filled(document.createElement(tag), ...rest);
const draw = (tag, ...rest) => filled(document.createElementNS("http" + "://www.w3.org/2000/svg", tag), ...rest);
const svg = (width, height, label) => draw("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label});
const titled = (shape, text) => filled(shape, {}, draw("title", {}, text));
const block = (title, ...content) => make("div", {}, make("h3", {}, title), ...content);

function legend(items) {
  return make("ul", {class: "legend"}, ...items.map(([name, colour]) =>
    make("li", {}, make("i", {style: `background:${colour}`}), name)));
}

function timeSplit(seconds) {
  const parts = Object.entries(seconds).filter(([, v]) => v > 0);
  const order = ["prefill", "draft", "verify", "adapt", "other"];
  parts.sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
  const total = parts.reduce((sum, [, v]) => sum + v, 0);
  const picture = svg(400, 34, "time by phase");
  let x = 0;
  for (const [name, value] of parts) {
    const width = 400 * value / total;
    picture.append(titled(draw("rect", {x, y: 0, width, height: 34, style: `fill:var(--c${order.indexOf(name)})`}), `${name} ${value.toFixed(3)} s`));
    x += width;
  }
  const text = ([name, v]) => [`${name} ${(100 * v / total).toFixed(1)}% ${v.toFixed(2)} s`, `var(--c${order.indexOf(name)})`];
  return block("Time split", picture, legend(parts.map(text)));
}

function byPosition(shares) {
  const picture = svg(400, 170, "share accepted by draft position");
  const step = 370 / shares.length;
  for (const level of [0, 0.5, 1]) {
    const y = 150 - 140 * level;
    picture.append(draw("line", {class: "axis", x1: 28, x2: 400, y1: y, y2: y}), draw("text", {x: 24, y: y + 4, "text-anchor": "end"}, level));
  }
  shares.forEach((share, i) => {
    const height = 140 * (share ?? 0);
    const x = 30 + i * step;
    picture.append(titled(draw("rect", {x: x + step * 0.1, y: 150 - height, width: step * 0.8, height, style: "fill:var(--c1)"}), `position ${i + 1}: ${share?.toFixed(3)}`));
    if (shares.length <= 16 || i % 5 === 4) picture.append(draw("text", {x: x + step / 2, y: 164, "text-anchor": "middle"}, i + 1));
  });
  return block("Acceptance by position", picture);
}

function skipMap({layers, sets, of}) {
  const single = sets.length === 1;
  const panels = [["attention", 2, "var(--c2)"], ["MLP", 3, "var(--c3)"]];
  const across = single ? layers : sets.length;
  const size = single ? 18 : Math.min(8, 150 / layers);
  const tall = single ? size : size * layers;
  const picture = svg(400, 2 * tall + 44, "skipped sub-layers");
  const step = 330 / across;
  panels.forEach(([name, at, colour], p) => {
    const top = 4 + p * (tall + 10);
    picture.append(draw("text", {x: 62, y: top + tall / 2 + 4, "text-anchor": "end"}, name));
    picture.append(draw("rect", {class: "axis", x: 68, y: top, width: 330, height: tall}));
    sets.forEach((set, i) => set[at].forEach(layer => {
      const place = single ? {x: 68 + layer * step, y: top} : {x: 68 + i * step, y: top + layer * size};
      const shape = draw("rect", {...place, width: step * 0.92, height: size * 0.92, style: `fill:${colour}`});
      picture.append(titled(shape, `${name} of layer ${layer}; sample ${set[0]}, from round ${set[1]}`));
    }));
  });
  picture.append(draw("text", {x: 68, y: 2 * tall + 34}, single ? "layer 0" : "first set"));
  picture.append(draw("text", {x: 398, y: 2 * tall + 34, "text-anchor": "end"}, single ? `layer ${layers - 1}` : `set ${sets.length} of ${of}`));
  const told = single ? "One set for all rounds shown; coloured sub-layers are skipped."
    : "A column per set, in the order of use; layer 0 on top; coloured sub-layers are skipped.";
  return block("Skip map", picture, make("p", {class: "faint"}, told));
}

function course({name, values, starts, of, by}) {
  const picture = svg(400, 150, `${name} by ${by}`);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const x = i => 44 + 352 * i / Math.max(1, values.length - 1);
  const y = v => 126 - 114 * (v - low) / (high - low);
  for (const level of [low, high]) {
    picture.append(draw("line", {class: "axis", x1: 44, x2: 396, y1: y(level), y2: y(level)}));
    picture.append(draw("text", {x: 40, y: y(level) + 4, "text-anchor": "end"}, Number(level.toPrecision(3))));
  }
  if (starts.length <= 40) for (const start of starts.slice(1))
    picture.append(draw("line", {class: "axis", x1: x(start), x2: x(start), y1: 10, y2: 128, "stroke-dasharray": "2 3"}));
  const points = values.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  picture.append(draw("polyline", {points, style: "fill:none;stroke:var(--c1);stroke-width:1.4"}));
  values.forEach((v, i) => picture.append(titled(draw("circle", {cx: x(i), cy: y(v), r: 4, style: "fill:transparent"}), `${by} ${i + 1}: ${v}`)));
  const all = of > values.length ? ` of ${of}` : "";
  picture.append(draw("text", {x: 396, y: 144, "text-anchor": "end"}, `${values.length}${all} ${by}s; dashed: next sample`));
  return block(name[0].toUpperCase() + name.slice(1), picture);
}

const HOW = {
  pieces: "Each token's text is the run's own.",
  text: "The record does not say where each token's text ends: it is shown without colours.",
  counts: "The record holds no text: only counts are shown.",
};

function sample({id, prompt, pieces, how, lossless, tokens, rounds}, sources) {
  const output = make("p");
  for (const [kind, count, text, source] of pieces) {
    const shown = kind === "rejected" ? `\u2212${count}` : how === "counts" ? ` ${kind} ${count} ` : text;
    const told = source ? `${kind}, ${sources[source]}` : kind;
    output.append(make("mark", {class: source ? `${kind} ${source}` : kind, title: `${told}: ${count}`}, shown));
  }
  return make("article", {class: "sample"}, make("h3", {}, id),
    make("p", {class: "faint"}, `${tokens} tokens in ${rounds} rounds; ${lossless}. ${HOW[how]}`),
    ...(prompt ? [make("details", {}, make("summary", {}, "prompt"), make("p", {}, prompt))] : []), output);
}

function text(value, depth = 0) {
  const pad = "  ".repeat(depth);
  if (value === null || typeof value !== "object") return String(value ?? "\u2014");
  if (Array.isArray(value)) return JSON.stringify(value);
  return Object.entries(value).map(([k, v]) => {
    const nested = v !== null && typeof v === "object" && !Array.isArray(v) && Object.keys(v).length;
    return `${pad}${k}:${nested ? "\n" + text(v, depth + 1) : " " + text(v)}`;
  }).join("\n");
}

const inTables = [...document.querySelectorAll("#tables td[data-run]")];

function linkTables() {
  const known = new Set(rows.map(row => row.dataset.run));
  for (const field of inTables.filter(f => known.has(f.dataset.run))) {
    const link = make("a", {href: "#" + new URLSearchParams({run: field.dataset.run}), title: field.dataset.run});
    link.append(...field.childNodes);
    field.append(link);
  }
}

function tablesWith(id) {
  const found = new Set(inTables.filter(f => f.dataset.run === id).map(f => f.closest("details").id));
  const links = [...found].flatMap(name => [" ", make("a", {href: `#${name}`}, name.replace("table-", ""))]);
  return links.length ? [make("p", {}, "In tables:", ...links)] : [];
}

function show(id) {
  const place = document.getElementById("run");
  const source = [...document.querySelectorAll("script[data-detail]")].find(s => s.dataset.detail === id);
  place.replaceChildren(make("h2", {}, id), make("p", {}, make("a", {href: "#"}, "all runs")));
  place.hidden = false;
  if (!source) return place.append(make("p", {}, "No such run is in this page."));
  const run = JSON.parse(source.textContent);
  if (run.unreadable) return place.append(make("p", {}, run.unreadable));
  if (run.provenance.label) place.firstElementChild.append(" ", make("small", {}, run.provenance.label));
  const row = rows.find(r => r.dataset.run === id);
  place.append(make("dl", {class: "facts"}, ...heads.flatMap((h, i) => row.cells[i].textContent ?
    [make("div", h.textContent === "note" ? {class: "whole"} : {}, make("dt", {}, h.textContent), make("dd", {}, row.cells[i].textContent))] : [])));
  place.append(...tablesWith(id));
  const charts = make("div", {class: "charts"});
  const {seconds, accepted_by_position: shares} = run.metrics;
  if (seconds) charts.append(timeSplit(seconds));
  if (shares?.length) charts.append(byPosition(shares));
  if (run.skip) charts.append(skipMap(run.skip));
  charts.append(...run.courses.map(course));
  place.append(make("h2", {}, "Course"), charts, make("h2", {}, "Texts"));
  const accepted = Object.entries(run.sources).map(([letter, name]) => [`accepted: ${name}`, `var(--source-${letter})`]);
  place.append(legend([...(accepted.length ? accepted : [["accepted draft", "var(--accepted)"]]), ["the target's own", "none"],
    ["\u2212n: draft tokens rejected there (records hold their number, not their ids)", "var(--rejected)"]]));
  if (run.samples > run.texts.length) place.append(make("p", {class: "faint"}, document.getElementById("limit").content.textContent));
  place.append(...run.texts.map(one => sample(one, run.sources)));
  for (const [title, key] of [["Metrics", "metrics"], ["Config", "config"], ["Provenance", "provenance"], ["Status", "status"]])
    place.append(make("details", {}, make("summary", {}, title), make("pre", {tabindex: "0"}, text(run[key]))));
}

function follow() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const place = document.getElementById("run");
  document.querySelectorAll("main > section").forEach(s => { s.hidden = wanted.has("run") !== (s === place) || s.id === "overview" && !rows.length; });
  if (wanted.has("run")) {
    show(wanted.get("run"));
    scrollTo(0, 0);
    place.focus({preventScroll: true});
    return;
  }
  place.replaceChildren();
  recall(wanted);
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

addEventListener("hashchange", follow);
const live = document.getElementById("live");
if (live) setInterval(() => { if (live.checked && !document.hidden) location.reload(); }, 5000);
linkTables();
follow();
