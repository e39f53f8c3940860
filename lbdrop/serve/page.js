// Titles in, recommendations out. Text from the service only ever becomes text nodes.
"use strict";

const byId = (id) => document.getElementById(id);
const [query, options, liked, message, found, results] = ["query", "options", "liked", "message", "found", "results"].map(byId);
const chosen = new Map(); // item_id → title, in the order they were named
let offered = [], offeredFor = "", active = -1, facts = null;
let searching = null, asking = null, takeFirst = false, pause = 0;

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function say(text, bad = false) {
  message.textContent = text;
  message.classList.toggle("bad", bad);
}

async function ask(path, body, signal) {
  const headers = { "X-Lbdrop": "1" }; // no page of another site can send it
  const request = body === undefined ? { headers } : { method: "POST", body: JSON.stringify(body), headers: { ...headers, "Content-Type": "application/json" } };
  const response = await fetch(path, { ...request, signal });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return; // a newer question took its place
    say(error instanceof TypeError ? "The service does not answer. Is it still running?" : error.message, true);
    found.classList.remove("waiting");
  }
}

// ---- searching

function search() {
  searching?.abort();
  const words = query.value.trim();
  if (!words) return close();
  const mine = (searching = new AbortController());
  attempt(async () => {
    const answer = await ask(`items?limit=${Math.min(8 + chosen.size, 100)}&query=${encodeURIComponent(words)}`, undefined, mine.signal);
    searching = null;
    offer(answer.items.filter((item) => !chosen.has(item.item_id)).slice(0, 8), words);
    if (!offered.length) {
      say(answer.items.length ? `“${words}” is on your list already.` : `No title has “${words}”. Try fewer letters, or another word.`, true);
    } else {
      say("");
      if (takeFirst) choose(offered[0]);
    }
    takeFirst = false;
  });
}

function offer(items, words = "") {
  [offered, offeredFor] = [items, words];
  options.replaceChildren(
    ...items.map((item, place) => {
      const option = element("li", "", element("span", "", item.title), element("span", "", `${item.likes.toLocaleString("en")} ♥`));
      option.id = `option-${place}`;
      option.setAttribute("role", "option");
      option.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
      option.addEventListener("click", () => choose(item));
      return option;
    }),
  );
  options.hidden = !items.length;
  query.setAttribute("aria-expanded", String(items.length > 0));
  highlight(-1);
}

function highlight(place) {
  active = place;
  [...options.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === place)));
  if (place < 0) return query.removeAttribute("aria-activedescendant");
  query.setAttribute("aria-activedescendant", `option-${place}`);
  options.children[place].scrollIntoView({ block: "nearest" });
}

function close() {
  searching?.abort();
  searching = null;
  takeFirst = false;
  clearTimeout(pause);
  offer([]);
}

query.addEventListener("input", () => {
  say("");
  takeFirst = false;
  clearTimeout(pause);
  pause = setTimeout(search, 100);
});

query.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in steps && offered.length) {
    event.preventDefault();
    const places = offered.length + 1; // one of them is the field itself
    highlight(((active + 1 + steps[event.key] + places) % places) - 1);
  } else if (event.key === "Enter" && !event.isComposing && query.value.trim()) {
    event.preventDefault();
    // Who has gone on typing does not mean the first match of what was typed before.
    if (active >= 0 || (offered.length && offeredFor === query.value.trim())) return choose(offered[Math.max(active, 0)]);
    takeFirst = true; // as soon as it is found
    clearTimeout(pause);
    search();
  } else if (event.key === "Escape") {
    close();
  } else if (event.key === "Backspace" && !query.value && chosen.size) {
    remove([...chosen.keys()].at(-1));
  }
});
query.addEventListener("blur", close);

// ---- choosing

function choose(item) {
  chosen.set(item.item_id, item.title);
  query.value = "";
  close();
  query.focus();
  show();
}

function remove(id) {
  chosen.delete(id);
  query.focus();
  show();
}

function show() {
  liked.replaceChildren(
    ...[...chosen].map(([id, title]) => {
      const cross = element("button", "", "×");
      cross.setAttribute("aria-label", `Remove ${title}`);
      cross.addEventListener("click", () => remove(id));
      return element("li", "", title, cross);
    }),
  );
  byId("start").hidden = chosen.size > 0 || !byId("popular").childElementCount;
  asking?.abort();
  if (!chosen.size) {
    found.hidden = true;
    return say("");
  }
  const mine = (asking = new AbortController());
  found.classList.add("waiting");
  attempt(async () => {
    facts ??= await ask("model"); // who is quick asks before the page knows what it shows
    const answer = await ask("recommend", { histories: [[...chosen.keys()]], k: 10, reasons: 3 }, mine.signal);
    draw(answer.results[0].items);
    found.classList.remove("waiting");
    found.hidden = false;
    const count = answer.results[0].items.length;
    say(count ? `${count} recommendations from ${chosen.size} ${chosen.size === 1 ? "title" : "titles"}.` : "Nothing is left to recommend.");
  });
}

// ---- drawing

function percent(share) {
  const value = share * 100;
  if (value < 0.001) return "<0.001";
  return value >= 9.95 ? value.toFixed(0) : value.toPrecision(2);
}

function draw(items) {
  const likely = facts?.log_probability ?? false;
  const sure = items.some((item) => item.uncertainty !== null);
  const ends = items.map((item) => span(item, likely));
  const most = Math.max(...ends.map((each) => each.high), 1e-9);
  const least = likely ? 0 : Math.min(...ends.map((each) => each.low), 0);
  const at = (value) => `${(100 * (value - least)) / (most - least)}%`;
  byId("legend").textContent = likely
    ? "The bar is the chance that this is the next thing you like, among everything there is." +
      (sure ? ` The line around its end is one standard deviation over ${facts.samples} masks of the model: the longer, the less sure.` : "")
    : "The bar is the score; this method does not say how sure it is.";
  results.replaceChildren(...items.map((item, place) => card(item, ends[place], at, likely)));
}

function span(item, likely) {
  const value = likely ? Math.exp(item.score) : item.score;
  const factor = Math.exp(item.uncertainty ?? 0);
  return likely ? { low: value / factor, value, high: value * factor } : { low: value, value, high: value };
}

function card(item, { low, value, high }, at, likely) {
  const bar = element("div", "bar");
  const track = element("div", "track", bar);
  bar.style.width = at(value);
  const number = element("span", "number", element("b", "", likely ? `${percent(value)} %` : value.toPrecision(3)));
  if (item.uncertainty !== null) {
    const line = element("div", "spread");
    line.style.left = at(low);
    line.style.right = `calc(100% - ${at(high)})`;
    const dot = element("div", "dot");
    dot.style.left = at(value);
    track.append(line, dot);
    number.append(` ${percent(low)}–${percent(high)}`);
  }
  track.setAttribute("aria-hidden", "true"); // the number says the same
  const add = element("button", "add", "+ like it");
  add.setAttribute("aria-label", `I like ${item.title} too`);
  add.addEventListener("click", () => choose(item));
  return element(
    "li", "", element("span", "rank", String(item.rank)), element("span", "title", item.title), add,
    element("div", "measure", track, number), because(item.reasons ?? []),
  );
}

function because(reasons) {
  const speaking = reasons.filter((reason) => reason.effect > 0);
  if (!speaking.length) return element("p", "reasons", "None of your titles speaks for it by itself.");
  const parts = speaking.flatMap((reason, place) => [
    place ? ", " : "because of ",
    element("b", "", reason.title),
    " ",
    element("i", "", `${Math.round(reason.share * 100)} %`),
  ]);
  return element("p", "reasons", ...parts);
}

// ---- starting

attempt(async () => {
  facts = await ask("model");
  const masks = facts.samples > 1 ? `, ${facts.samples} masks` : "";
  byId("facts").textContent = `${facts.method}, ${facts.items.toLocaleString("en")} items${masks}, lbdrop ${facts.versions.lbdrop}`;
  const popular = (await ask("items?limit=4")).items;
  const buttons = popular.map((item) => {
    const button = element("button", "", item.title);
    button.addEventListener("click", () => choose(item));
    return button;
  });
  byId("popular").append(...buttons.flatMap((button, place) => (place ? [", ", button] : [button])));
  byId("start").hidden = chosen.size > 0 || !buttons.length;
});
