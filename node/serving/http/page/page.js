// The live page. All that it shows comes from "live" (server-sent events) and "../explain"; it keeps no rights and
// no state but the picture, so that it survives the replica that serves it.
"use strict";
const HUES = [212, 28, 150, 330, 50, 275, 185, 0, 95, 240];
const WORK_LEAST = 1e-5, WAIT_LEAST = 1e-3, CODES_EACH = 12.65; // as in node/history/mod.rs
const EDGE = 14, $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");

/** An element; a text is never read as HTML. */
function h(tag, props, ...children) {
  const made = Object.assign(document.createElement(tag), props);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// --- the picture
const map = { seconds: 10, ranges: 256, kept: 360, shown: 12, names: [], columns: new Map(), newest: 0, rows: [], gone: new Set() };
let cursor = null;
const idOf = (name) => {
  const known = map.names.indexOf(name);
  return known < 0 ? map.names.push(name) : known + 1;
};
const hue = (id) => HUES[(id - 1) % HUES.length];
const ownerColor = (id) => (id === 0 ? "hsl(0 0% 50%)" : `hsl(${hue(id)} 75% ${dark.matches ? 58 : 42}%)`);
const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const amount = (code, least) => (code < 2 ? 0 : least * 2 ** ((code - 2) / CODES_EACH));
const time = (at) => new Date(at * map.seconds * 1000).toLocaleTimeString([], { hour12: false });

function takeColumns(part) {
  Object.assign(map, { seconds: part.seconds, ranges: part.ranges, kept: part.kept });
  const ids = [0, ...part.names.map(idOf)];
  const planes = { owner: null, work: null, wait: null };
  for (const column of part.columns) {
    const before = map.columns.get(column.at);
    const own = {};
    for (const name of ["owner", "work", "wait"]) {
      if (column[name] !== undefined) planes[name] = bytes(column[name]);
      const plane = name === "owner" ? planes.owner.map((id) => ids[id]) : planes[name].slice();
      // What another replica has said before is known still: it may have died with its records.
      if (before) plane.forEach((cell, range) => { if (cell === 0 && name !== "owner") plane[range] = before[name][range]; });
      own[name] = plane;
    }
    map.columns.set(column.at, own);
    map.newest = Math.max(map.newest, column.at);
  }
  let first = map.newest;
  for (const [at, column] of map.columns) {
    if (at <= map.newest - map.kept) map.columns.delete(at);
    else if (at < first && column.owner.some((id) => id)) first = at;
  }
  // A fleet that is younger than an hour fills the picture too.
  map.shown = Math.min(map.kept, Math.max(12, map.newest - first + 1));
  const minutes = (map.shown * map.seconds) / 60, words = (share) => (share ? `${+(minutes * share).toFixed(1)} min` : "now");
  [...document.querySelector(".axis").children].forEach((one, place) => { one.textContent = words(1 - place / 4); });
  redraw();
  showChanges();
}
function redraw() { order(); draw(); }

/** The rows: by the owners, the newest first, so that what moved together stands together. */
function order() {
  const rows = Array.from({ length: map.ranges }, (_, range) => range);
  if (document.querySelector("[name=order]:checked").value === "owner") {
    const path = rows.map(() => "");
    for (let at = map.newest, last = null; at > map.newest - map.shown; at--) {
      const column = map.columns.get(at);
      if (!column) continue;
      rows.forEach((range) => { if (last?.owner[range] !== column.owner[range]) path[range] += String.fromCharCode(64 + column.owner[range]); });
      last = column;
    }
    rows.sort((one, other) => (path[one] < path[other] ? -1 : path[one] > path[other] ? 1 : one - other));
  }
  map.rows = rows;
}

/** What nobody has recorded is grey, as after a death. */
function shade(id, code, most) {
  const much = code < 2 ? 0 : Math.min(1, 0.12 + (0.88 * (code - 2)) / (most - 2));
  const light = dark.matches ? 13 + 57 * much : 91 - 55 * much;
  return id === 0 ? [0, 0, dark.matches ? 22 : 80] : [hue(id), code ? 35 + 45 * much : 6, light];
}

function rgb([hueOf, saturation, light]) {
  const s = saturation / 100, l = light / 100, a = s * Math.min(l, 1 - l);
  const part = (n) => { const k = (n + hueOf / 30) % 12; return 255 * (l - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))); };
  return [part(0), part(8), part(4)];
}

function draw() {
  const canvas = $("map"), plane = document.querySelector("[name=plane]:checked").value, ratio = devicePixelRatio || 1;
  Object.assign(canvas, { width: canvas.clientWidth * ratio, height: canvas.clientHeight * ratio });
  const context = canvas.getContext("2d");
  if (!map.newest || !canvas.width) return;
  let most = 80;
  for (const column of map.columns.values()) for (const code of column[plane]) if (code > most) most = code;
  const image = new ImageData(map.shown, map.ranges), known = new Map();
  const put = (x, y, color) => image.data.set([...color, 255], 4 * (y * map.shown + x));
  const first = map.newest - map.shown + 1;
  for (let x = 0; x < map.shown; x++) {
    const column = map.columns.get(first + x), before = map.columns.get(first + x - 1);
    if (!column) continue;
    map.rows.forEach((range, y) => {
      const id = column.owner[range], code = column[plane][range], was = before ? before.owner[range] : 0;
      if (!id && !code && !was) return;
      const changed = was && was !== id, name = changed ? -1 : id * 256 + code;
      if (!known.has(name)) known.set(name, changed ? Array(3).fill(dark.matches ? 255 : 0) : rgb(shade(id, code, most)));
      put(x, y, known.get(name));
    });
  }
  const picture = new OffscreenCanvas(map.shown, map.ranges);
  picture.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  const width = canvas.width - EDGE * ratio, row = canvas.height / map.ranges;
  context.drawImage(picture, 0, 0, width - 2 * ratio, canvas.height);
  const now = map.columns.get(map.newest);
  map.rows.forEach((range, y) => {
    context.fillStyle = ownerColor(now.owner[range]);
    context.fillRect(width, Math.floor(y * row), EDGE * ratio, Math.ceil(row));
  });
  if (cursor) {
    Object.assign(context, { strokeStyle: dark.matches ? "#fff" : "#000", lineWidth: 2 * ratio });
    context.strokeRect(((cursor.x + 0.5) / map.shown) * width - 4 * ratio, (cursor.y + 0.5) * row - 4 * ratio, 8 * ratio, 8 * ratio);
  }
  const named = map.names.filter((name) => map.gone.has(name) || now.owner.includes(idOf(name))).sort();
  $("legend").replaceChildren(...named.map((name) => h("li", { className: map.gone.has(name) ? "bad" : "" }, swatch(name), name, map.gone.has(name) ? " (gone)" : "")));
}

function swatch(name) {
  const made = h("span", { className: "swatch" });
  made.style.background = ownerColor(idOf(name));
  return made;
}

/** The same as the picture, in words. */
function showChanges() {
  const lines = [];
  let before = null;
  for (let at = map.newest - map.shown + 1; at <= map.newest; at++) {
    const column = map.columns.get(at);
    if (!column || !column.owner.some((id) => id)) continue;
    const counts = new Map();
    if (before) column.owner.forEach((id, range) => {
      const pair = `${before.owner[range]} ${id}`;
      if (before.owner[range] !== id) counts.set(pair, (counts.get(pair) || 0) + 1);
    });
    for (const [pair, count] of counts) lines.push({ cells: [time(at), ...pair.split(" ").map((id) => map.names[id - 1] || "nobody"), count] });
    before = column;
  }
  fill("changes", lines.reverse().slice(0, 200), ["no range has changed its owner", "", "", ""]);
}

function moveCursor(x, y) {
  if (!map.newest) return;
  cursor = { x: Math.max(0, Math.min(map.shown - 1, x)), y: Math.max(0, Math.min(map.ranges - 1, y)) };
  const at = map.newest - map.shown + 1 + cursor.x, range = map.rows[cursor.y], column = map.columns.get(at);
  const owner = column ? map.names[column.owner[range] - 1] || "nobody" : "nothing recorded";
  const work = column ? `, work ${percent(amount(column.work[range], WORK_LEAST))}, longest wait ${span(1000 * amount(column.wait[range], WAIT_LEAST))}` : "";
  $("cell").textContent = `Range ${range} at ${time(at)}: ${owner}${work}`;
  draw();
}

// --- tables
const span = (ms) => (ms === null || ms === undefined ? "–" : ms < 1 ? "0 ms" : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)} s`);
const percent = (load) => `${(100 * load).toFixed(load < 0.01 ? 2 : 1)} %`;

/** Fills a table's body; who had the focus has it again. */
function fill(id, lines, empty) {
  const body = $(id).tBodies[0], focused = body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const rows = (lines.length ? lines : [{ cells: empty }]).map((line) => h("tr", {}, ...line.cells.map((cell, place) => {
    if (cell instanceof HTMLElement && cell.tagName === "TD") return cell;
    const heads = place === 0 && lines.length;
    return h(heads ? "th" : "td", { className: typeof cell === "number" ? "number" : "", ...(heads ? { scope: "row" } : {}) }, cell instanceof Node ? cell : String(cell));
  })));
  body.replaceChildren(...rows);
  if (focused) [...body.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus({ preventScroll: true });
}

const text = (words, className) => h("td", { className: `text ${className || ""}` }, words);
function keyButton(controller, key) {
  const button = h("button", { className: "key", type: "button" }, `${controller} ${key}`);
  button.dataset.key = `${controller} ${key}`;
  button.addEventListener("click", () => ask({ controller, key, scope: "fleet" }, true));
  return button;
}
const noteOf = (part, what) => [part.hidden ? `${part.hidden} ${what} left out: you may not list their objects.` : "", part.omitted ? `${part.omitted} more.` : ""].join(" ").trim();

function takeState(state) {
  const gone = state.replicas.filter((one) => one.state === "gone").map((one) => one.name);
  const news = [...gone.filter((name) => !map.gone.has(name)).map((name) => `${name} is gone`), ...[...map.gone].filter((name) => !gone.includes(name)).map((name) => `${name} is back`)];
  map.gone = new Set(gone);
  const active = state.replicas.length - gone.length;
  say(`${active} replica${active === 1 ? "" : "s"}, ${state.ranges} ranges${state.unowned ? `, ${state.unowned} without an owner` : ""}; served by ${state.replica}.${news.length ? ` ${news.join(", ")}.` : ""}`, state.unowned > 0);
  fill("replicas", state.replicas.map((one) => {
    const said = one.figures;
    const figures = said
      ? [one.ranges ? h("span", { className: said.open ? "good" : "bad" }, said.open ? "open" : "closed") : "–", one.ranges, said.keys, said.queued, percent(said.load), span(said.waited_ms), span(said.lag_ms)]
      : ["–", one.ranges, "–", "–", "–", "–", "–"];
    const word = h("span", { className: one.state === "active" ? "good" : "bad" }, one.state);
    return { cells: [h("span", {}, swatch(one.name), one.name), h("td", { className: one.why ? "text" : "" }, word, one.why ? ` ${one.why}` : ""), ...figures] };
  }), ["no replica", "", "", "", "", "", "", "", ""]);
}

function takeKeys({ top, unhappy, refused }) {
  $("keys-note").textContent = refused || noteOf(top, "keys");
  $("unhappy-note").textContent = refused || noteOf(unhappy, "keys");
  fill("keys", top.keys.filter((key) => key.rate > 0.0005).slice(0, 20).map((key) => ({ cells: [keyButton(key.controller, key.key), key.rate.toFixed(2), percent(key.load), key.owner] })), ["nothing is busy", "", "", ""]);
  fill("ranges", top.ranges.slice(0, 20).map((range) => ({ cells: [range.range, range.rate.toFixed(2), percent(range.load), range.keys, range.queued, range.owner] })), ["no range", "", "", "", "", ""]);
  fill("unhappy", unhappy.keys.map((key) => {
    const last = key.attempts[key.attempts.length - 1] || {}, blocker = key.pause || last.blocker;
    return { cells: [keyButton(key.controller, key.key), key.failures ? key.failures : "has recovered", text(blocker ? `${blocker.kind} ${blocker.name}` : "–", key.failures ? "bad" : ""), text(last.error || "–"), key.owner] };
  }), ["no key fails", "", "", "", ""]);
  if (asked && !document.hidden) ask(asked, false);
}

// --- one object
let asked = null;
async function ask(query, moves) {
  let shown = null;
  asked = query;
  try {
    const response = await fetch(`../explain?${new URLSearchParams(query)}`);
    const said = await response.text();
    if (!response.ok) throw new Error(said.startsWith("{") ? JSON.parse(said).message : said);
    shown = explained(JSON.parse(said));
  } catch (error) {
    shown = [h("p", { className: "bad" }, error.message)];
  }
  if (asked !== query) return;
  $("answer").replaceChildren(...shown);
  if (moves) { $("answer").focus({ preventScroll: true }); $("answer").scrollIntoView({ block: "nearest" }); }
}

function explained({ object, keys, hidden, omitted, missing }) {
  const parts = [], names = (all) => all.map((one) => `${one.resource} ${one.name}`).join(" → ");
  if (object) {
    parts.push(h("h3", {}, `${object.resource} ${object.name}${object.exists ? "" : " (not in the cache)"}`));
    if (object.owners.length) parts.push(h("p", {}, `owned by ${names(object.owners)}`));
    if (object.dependents_total) parts.push(h("p", {}, `controls ${object.dependents_total}:`), h("ul", {}, ...object.dependents.map((one) => h("li", {}, names([one])))));
    for (const hold of object.holds) parts.push(h("p", { className: "bad" }, `${hold.kind} ${hold.name}: ${hold.detail} ${hold.remedy}`));
  }
  for (const key of keys) parts.push(...timeline(key));
  for (const one of hidden) parts.push(h("p", { className: "note" }, `${one.controller}: left out, needs ${one.needs}`));
  if (omitted) parts.push(h("p", { className: "note" }, `${omitted} more keys`));
  for (const one of missing) parts.push(h("p", { className: "bad" }, `${one.replica}: ${one.why}`));
  if (!keys.length) parts.push(h("p", {}, "No key of a controller concerns it."));
  return parts;
}

const step = (words) => h("span", { className: "step" }, words);
/** What happened to a key: woken, queued, waited, planned, wrote. */
function timeline(key) {
  const parts = [h("h3", {}, `${key.controller} ${key.key}${key.via ? ` (${key.via})` : ""}`),
    h("p", {}, `${key.state}; range ${key.range}, owner ${key.owner || "nobody"}${key.waited_ms != null ? `; waits for ${span(key.waited_ms)}` : ""}${key.next_in_ms != null ? `; next attempt in ${span(key.next_in_ms)}` : ""}${key.failures ? `; ${key.failures} failures in a row` : ""}`)];
  if (key.blocker) parts.push(h("p", { className: "bad" }, `blocked by ${key.blocker.kind} ${key.blocker.name}: ${key.blocker.detail}`), h("p", {}, key.blocker.remedy));
  const last = key.last, attempts = key.attempts || [], list = h("ol", { className: "timeline" });
  const both = attempts.map((one) => ({ ...one, ...(last && last.at === one.at ? { plan: last.plan, objects: last.objects, waits_for: last.waits_for } : {}) }));
  if (last && !attempts.some((one) => one.at === last.at)) both.push(last);
  for (const one of both) {
    const when = new Date(one.at).toLocaleTimeString([], { hour12: false });
    const wrote = one.error ? `failed${one.code ? ` (${one.code})` : ""}: ${one.error}` : one.plan && one.plan.length ? "wrote:" : one.plan ? "nothing to write" : one.result;
    list.append(h("li", { className: one.error ? "failed" : "done" }, step(`${when} woken${one.woken_by ? ` by ${one.woken_by}` : ""}`), step(`queued ${span(one.waited_ms)}`), one.waits_for ? step(`waits for ${one.waits_for}`) : null,
      step(`planned${one.objects ? ` over ${one.objects} objects` : ""}, took ${span(one.took_ms)}`), step(wrote), one.next_in_ms != null ? step(`again in ${span(one.next_in_ms)}`) : null, one.plan && one.plan.length ? h("ul", {}, ...one.plan.slice(0, 50).map((line) => h("li", {}, line))) : null));
  }
  return [...parts, list];
}

// --- the stream
function say(words, bad) {
  if ($("status").textContent !== words) $("status").textContent = words;
  $("status").className = bad ? "bad" : "";
}

function open() {
  const source = new EventSource("live"), takes = { columns: takeColumns, state: takeState, keys: takeKeys };
  for (const [name, take] of Object.entries(takes)) source.addEventListener(name, (event) => take(JSON.parse(event.data)));
  source.onerror = () => {
    say("The replica does not answer; asking again …", true);
    // What was refused is not repeated by the browser itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(open, 3000);
  };
}

for (const radio of document.querySelectorAll("[type=radio]")) radio.addEventListener("change", redraw);
for (const [what, on] of [[dark, "change"], [window, "resize"]]) what.addEventListener(on, draw);
$("map").addEventListener("pointermove", (event) => {
  const box = $("map").getBoundingClientRect();
  moveCursor(Math.floor(((event.clientX - box.left) / (box.width - EDGE)) * map.shown), Math.floor(((event.clientY - box.top) / box.height) * map.ranges));
});
$("map").addEventListener("keydown", (event) => {
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-map.shown, 0], End: [map.shown, 0], PageUp: [0, -16], PageDown: [0, 16] };
  const way = ways[event.key], from = cursor || { x: map.shown - 1, y: 0 };
  if (!way) return;
  event.preventDefault();
  moveCursor(from.x + way[0], from.y + way[1]);
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(Object.fromEntries(new FormData(event.target)), true);
});
open();
