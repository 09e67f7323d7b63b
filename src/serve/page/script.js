// Replaces parts of a page instead of loading all of it. Without this script, forms and links load the page.
"use strict";

let latest = 0;

async function swap(url, id) {
  const mine = ++latest;
  const response = await fetch(url);
  if (!response.ok) {
    location.href = url;
    return;
  }
  const loaded = new DOMParser().parseFromString(await response.text(), "text/html");
  const part = loaded.getElementById(id);
  // A later key may have been answered earlier.
  if (!part || mine !== latest) return;
  const focused = document.activeElement?.id;
  document.getElementById(id).replaceWith(part);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  const count = document.getElementById("count");
  // Screen readers announce what is set, even if it is the same.
  const found = loaded.getElementById("count").textContent;
  if (count.textContent !== found) count.textContent = found;
  history.replaceState(null, "", url);
}

function address(form) {
  const fields = [...new FormData(form)].filter(([, value]) => value !== "");
  const query = new URLSearchParams(fields).toString();
  return location.pathname + (query && "?" + query);
}

for (const form of document.querySelectorAll("form[data-swap]")) {
  let timer;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => swap(address(form), form.dataset.swap), 150);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    swap(address(form), form.dataset.swap);
  });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-swap]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const url = new URL(link.href);
  swap(url.pathname + url.search, link.dataset.swap);
});

// A slash goes to the filter.
document.addEventListener("keydown", (event) => {
  const filter = document.querySelector("form[data-swap] input[type=search]");
  const typing = event.target.matches("input, textarea, select");
  if (event.key !== "/" || typing || !filter || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  filter.focus();
});
