// The live status of doors: asked every three seconds. Only texts and marks change, so that the focus stays.
"use strict";

const watched = document.querySelector("[data-status]");
const summary = document.getElementById("summary");
const stale = document.getElementById("stale");
const EVERY = 3000;
const FIRST = 1000; // the first answers of the terminals come soon

/** Change a text only if it differs: a screen reader reads every change of a live text. */
function set(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function showDoor(door) {
  const row = [...watched.querySelectorAll("[data-door]")].find((one) => one.dataset.door === door.door);
  if (!row) return; // it was added after the page was loaded
  for (const mark of ["state", "camera", "failing"]) {
    if (row.dataset[mark] !== door[mark]) row.dataset[mark] = door[mark];
  }
  for (const field of row.querySelectorAll("[data-field]")) set(field, door[field.dataset.field]);
}

async function poll() {
  try {
    const response = await fetch(watched.dataset.status, { headers: { Accept: "application/json" } });
    if (response.ok) {
      const answer = await response.json();
      answer.doors.forEach(showDoor);
      set(summary, answer.summary);
      set(stale, "");
    } else if (response.status === 401) {
      return location.reload();
    }
  } catch (error) {
    console.debug("asking again", error); // the console may be restarting
    set(stale, offline); // what the page shows may be wrong now
  }
  setTimeout(next, EVERY);
}

/** Ask only while a person can see the page: doors that no page shows are not asked. */
function next() {
  if (document.hidden) document.addEventListener("visibilitychange", next, { once: true });
  else poll();
}

setTimeout(next, FIRST);
