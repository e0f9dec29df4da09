// The page of a running job: asks for its progress every second, and shows the result when it ends.
"use strict";

const card = document.getElementById("job");
const log = document.querySelector(".log");
const bar = card.querySelector("progress");
const stale = document.getElementById("stale");
const EVERY = 1000;

/** Change a text only if it differs: a screen reader reads every change. */
function set(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function addLine(line) {
  const row = document.createElement("li");
  const time = document.createElement("time");
  const text = document.createElement("span");
  time.textContent = line.time;
  text.textContent = line.text;
  row.append(time, " ", text);
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
  log.append(row);
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function showFacts(facts) {
  set(card.querySelector(".stage"), facts.stage || facts.state_text);
  set(card.querySelector(".left"), facts.left);
  set(card.querySelector(".count"), facts.count);
  if (facts.total) {
    bar.max = facts.total;
    bar.value = facts.done;
  } else {
    bar.removeAttribute("value");
  }
  card.querySelectorAll(".steps li").forEach((item, number) => {
    item.classList.toggle("past", number < facts.step);
    item.classList.toggle("now", number === facts.step);
    if (number === facts.step) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
  });
  facts.lines.forEach(addLine);
  card.dataset.lines = Number(card.dataset.lines) + facts.lines.length;
}

async function poll() {
  try {
    const path = `/jobs/${card.dataset.job}?lines=${card.dataset.lines}`;
    const response = await fetch(path, { headers: { Accept: "application/json" } });
    if (response.ok) {
      const facts = await response.json();
      showFacts(facts);
      set(stale, "");
      if (facts.has_result) return location.assign(facts.next);
      if (facts.state !== "running") return location.reload(); // it shows the message
    } else if (response.status === 401) {
      return location.reload();
    }
  } catch (error) {
    console.debug("the console does not answer; asking again", error); // it may be restarting
    set(stale, offline);
  }
  setTimeout(poll, EVERY);
}

setTimeout(poll, EVERY);
