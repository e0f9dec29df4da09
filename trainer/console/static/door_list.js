// The form of a door list: choose hours by mouse or arrow keys, add names, and warn before a change is lost.
"use strict";

const form = document.getElementById("list");
const PHONE = window.matchMedia("(max-width: 40rem)"); // the days are columns then, as style sheets say
const HOURS = 24;

/** The cells of a week: seven lists of 24 checkboxes. */
function cellsOf(week) {
  return [...week.querySelectorAll(".day")].map((day) => [...day.querySelectorAll("input")]);
}

function changed(element) {
  element.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Choose all cells of the rectangle between two corners, or clear them; the other cells are as `before` says. */
function paint(cells, before, [day, hour], [otherDay, otherHour], isChosen) {
  const [firstDay, lastDay] = [Math.min(day, otherDay), Math.max(day, otherDay)];
  const [firstHour, lastHour] = [Math.min(hour, otherHour), Math.max(hour, otherHour)];
  cells.forEach((row, d) =>
    row.forEach((cell, h) => {
      const isInside = firstDay <= d && d <= lastDay && firstHour <= h && h <= lastHour;
      cell.checked = isInside ? isChosen : before[d][h];
    }),
  );
}

function placeOf(cells, element) {
  const day = cells.findIndex((row) => row.includes(element));
  return day < 0 ? null : [day, cells[day].indexOf(element)];
}

/** Drag over cells: all of them get the new state of the first one. A finger scrolls, and a tap changes one cell. */
function dragOver(week, cells) {
  let start = null;
  let wasDragged = false;
  week.addEventListener("pointerdown", (event) => {
    wasDragged = false;
    const place = placeOf(cells, event.target);
    if (!place || event.button !== 0 || event.pointerType === "touch") return;
    wasDragged = true;
    const before = cells.map((row) => row.map((cell) => cell.checked));
    start = { place, before, isChosen: !event.target.checked };
    paint(cells, before, place, place, start.isChosen);
    event.target.focus();
    event.preventDefault(); // no selection of text
  });
  document.addEventListener("pointermove", (event) => {
    const place = start && placeOf(cells, document.elementFromPoint(event.clientX, event.clientY));
    if (place) paint(cells, start.before, start.place, place, start.isChosen);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    document.addEventListener(end, () => {
      if (start) changed(week);
      start = null;
    });
  }
  week.addEventListener("click", (event) => {
    // The cell has its state already. A click by keyboard or screen reader has no detail.
    if (wasDragged && event.detail > 0 && placeOf(cells, event.target)) event.preventDefault();
  });
}

/** One tab stop for the week; arrow keys move in it. With Shift, the next cell gets the state of this one. */
function arrowKeys(week, cells) {
  const steps = () =>
    PHONE.matches
      ? { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [0, -HOURS], End: [0, HOURS] }
      : { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -HOURS], End: [0, HOURS] };
  cells.flat().forEach((cell, number) => {
    cell.tabIndex = number === 0 ? 0 : -1;
  });
  week.addEventListener("focusin", (event) => {
    if (!placeOf(cells, event.target)) return;
    for (const cell of cells.flat()) cell.tabIndex = -1;
    event.target.tabIndex = 0;
  });
  week.addEventListener("keydown", (event) => {
    const place = placeOf(cells, event.target);
    const step = steps()[event.key];
    if (!place || !step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const day = Math.min(Math.max(place[0] + step[0], 0), cells.length - 1);
    const hour = Math.min(Math.max(place[1] + step[1], 0), HOURS - 1);
    const next = cells[day][hour];
    if (event.shiftKey && next.checked !== event.target.checked) {
      next.checked = event.target.checked;
      changed(next);
    }
    next.focus();
  });
}

/** The name of a day chooses the whole day, or clears it. */
function wholeDays(week, cells) {
  week.querySelectorAll(".whole").forEach((button, day) => {
    button.disabled = false;
    button.addEventListener("click", () => {
      const isChosen = cells[day].some((cell) => !cell.checked);
      for (const cell of cells[day]) cell.checked = isChosen;
      changed(week);
    });
  });
}

/** Add the value of a field to the lines of another one, without asking the server. */
function append(button) {
  const from = document.getElementById(button.dataset.append);
  const to = document.getElementById(button.dataset.to);
  const add = (event) => {
    event.preventDefault();
    const lines = to.value.split("\n").filter((line) => line.trim());
    if (from.value.trim() && !lines.includes(from.value.trim())) lines.push(from.value.trim());
    to.value = lines.join("\n");
    to.rows = Math.min(8, lines.length + 1);
    from.value = "";
    from.focus();
    changed(to);
  };
  button.addEventListener("click", add);
  from.addEventListener("keydown", (event) => {
    if (event.key === "Enter") add(event);
  });
}

/** Ask before changes are lost. */
function keepChanges() {
  let isChanged = "changed" in form.dataset;
  form.addEventListener("input", () => {
    isChanged = true;
  });
  form.addEventListener("submit", () => {
    isChanged = false;
  });
  window.addEventListener("beforeunload", (event) => {
    if (isChanged) event.preventDefault();
  });
}

for (const week of form.querySelectorAll(".week")) {
  const cells = cellsOf(week);
  dragOver(week, cells);
  arrowKeys(week, cells);
  wholeDays(week, cells);
}
form.querySelectorAll("[data-append]").forEach(append);
keepChanges();
