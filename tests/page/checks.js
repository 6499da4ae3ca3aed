// What a person with a keyboard, a screen reader or weak eyes needs of the page. Its value: what is wrong.
(() => {
  const wrong = [];
  const say = (what, one) => wrong.push(`${what}: ${one.outerHTML.slice(0, 120)}`);
  for (const one of document.querySelectorAll("input, select, textarea")) if (!one.labels || !one.labels.length) say("no label", one);
  for (const one of document.querySelectorAll("button, a, summary")) if (!one.textContent.trim()) say("no text", one);
  for (const one of document.querySelectorAll("th")) if (!one.scope) say("no scope", one);
  for (const one of document.querySelectorAll("section, [role=group]")) {
    const named = one.getAttribute("aria-label") || document.getElementById(one.getAttribute("aria-labelledby"));
    if (!named) say("no name", one);
  }
  for (const one of document.querySelectorAll("canvas")) if (!one.getAttribute("aria-label") || one.tabIndex !== 0 || one.getAttribute("role") !== "img") say("not to be read", one);
  for (const one of document.querySelectorAll("[tabindex]")) if (one.tabIndex > 0) say("an order of its own", one);
  for (const one of document.querySelectorAll(".scroll")) if (one.tabIndex !== 0) say("can't be scrolled by keys", one);
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  if (new Set(ids).size !== ids.length) wrong.push("an id twice");
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.querySelector("main") || !document.querySelector("[role=status]")) wrong.push("no main or status");
  const numbers = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = (color) => {
    const [r, g, b] = numbers(color).slice(0, 3).map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor, parts = numbers(color);
      if (parts.length === 3 || parts[3] > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !one.getClientRects().length) continue;
    const [high, low] = [luminance(getComputedStyle(one).color), luminance(behind(one))].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) say(`contrast ${contrast.toFixed(2)}`, one);
  }
  return wrong;
})()
