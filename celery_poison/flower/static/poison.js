// Everything works without this script; with it, pages stay fresh and confirmations open in place.
"use strict";
(function () {
  const INTERVAL = 5000, BUSY = 1000;
  const page = document.querySelector(".poison");
  const live = document.getElementById("poison-live");
  const dialog = document.getElementById("poison-dialog");
  let paused = false, opener = null;

  // An address with a password in it, as people type it for basic auth, cannot be fetched.
  function plain(address) {
    const url = new URL(address, location.href);
    url.username = url.password = "";
    return url.href;
  }

  // Changes `from` into `to` where they differ, so that focus, ticks and open details stay.
  function morph(from, to) {
    if (from.isEqualNode(to)) return;
    if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) { from.replaceWith(to.cloneNode(true)); return; }
    if (from.nodeType !== Node.ELEMENT_NODE) { from.nodeValue = to.nodeValue; return; }
    const kept = from.nodeName === "DETAILS" ? ["open"] : [];
    for (const { name } of [...from.attributes]) if (!to.hasAttribute(name) && !kept.includes(name)) from.removeAttribute(name);
    for (const { name, value } of to.attributes) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    children(from, to);
  }

  function children(from, to) {
    const named = new Map([...from.children].filter((e) => e.id).map((e) => [e.id, e]));
    let here = from.firstChild;
    for (const wanted of to.childNodes) {
      const known = wanted.id && named.get(wanted.id);
      if (known) {
        if (known === here) here = here.nextSibling; else from.insertBefore(known, here);
        morph(known, wanted);
      } else if (here && !here.id && !wanted.id && here.nodeName === wanted.nodeName) {
        const next = here.nextSibling;
        morph(here, wanted);
        here = next;
      } else {
        from.insertBefore(wanted.cloneNode(true), here);
      }
    }
    while (here) { const next = here.nextSibling; here.remove(); here = next; }
  }

  function say(kind, text) {
    live.querySelector(".status-dot").className = "status-dot status-dot-" + kind;
    const told = document.getElementById("poison-live-text");
    if (told.textContent !== text) told.textContent = text;
  }

  async function refresh() {
    try {
      const answer = await fetch(plain(location.href), { headers: { "X-Requested-With": "poison" }, cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!fresh.querySelector(".poison")) throw new Error("logged out");
      for (const part of page.querySelectorAll("[data-live]")) {
        const newer = fresh.getElementById(part.id);
        if (newer) morph(part, newer);
      }
      count();
      const away = fresh.querySelector("#poison-trouble .alert-danger");
      say(away ? "error" : "live", away ? "No news from Redis" : "Live");
    } catch (error) {
      say("error", "Flower does not answer");
    }
  }

  const job = document.getElementById("poison-job");
  const over = () => job && job.dataset.finished === "1";

  async function loop() {
    if (!paused && !document.hidden && !over() && !(dialog && dialog.open)) await refresh();
    setTimeout(loop, job ? BUSY : INTERVAL);
  }

  if (live && page.querySelector("[data-live]")) {
    live.hidden = false;
    live.addEventListener("click", () => {
      paused = !paused;
      live.setAttribute("aria-pressed", String(!paused));
      say(paused ? "off" : "live", paused ? "Paused" : "Live");
      if (!paused) refresh();
    });
    document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused && !over()) refresh(); });
    setTimeout(loop, job ? BUSY : INTERVAL);
  }

  // Ticks.
  const ticks = () => [...page.querySelectorAll('input[name="ids"][type="checkbox"]')];
  function count() {
    const all = document.getElementById("poison-all"), found = ticks(), ticked = found.filter((t) => t.checked).length;
    const chosen = ticked > 0 || page.querySelector('input[name="everything"]:checked');
    for (const button of page.querySelectorAll("#poison-bar button[data-preview]")) button.disabled = !chosen;
    if (!all) return;
    all.checked = ticked > 0 && ticked === found.length;
    all.indeterminate = ticked > 0 && ticked < found.length;
  }
  page.addEventListener("change", (event) => {
    if (event.target.id === "poison-all") ticks().forEach((tick) => { tick.checked = event.target.checked; });
    count();
  });

  count();

  // Confirmations.
  page.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-preview]");
    if (!button || !dialog || !dialog.showModal) return;
    event.preventDefault();
    const values = new FormData(button.form);
    if (button.name) values.append(button.name, button.value);
    opener = button;
    let form = null;
    try {
      const answer = await fetch(plain(button.formAction), { method: "POST", body: new URLSearchParams(values) });
      form = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("poison-confirm");
    } catch (error) { /* told below */ }
    if (!form) { button.form.requestSubmit(button); return; }
    dialog.replaceChildren(document.adoptNode(form));
    dialog.className = "poison-dialog poison";
    dialog.showModal();
    (form.querySelector("[autofocus]") || form.querySelector("[data-close]")).focus();
  });
  if (dialog) {
    dialog.addEventListener("click", (event) => {
      if (event.target.closest("[data-close]")) { event.preventDefault(); dialog.close(); }
    });
    dialog.addEventListener("close", () => { if (opener && opener.isConnected) opener.focus(); });
  }
})();
