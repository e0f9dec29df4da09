"use strict";
// Requests events and health once a second. Text is set with textContent only, so a name is never markup.

const part = (id) => document.getElementById(id);
const seen = new Set();
let connected = false;

function element(kind, className, text) {
  const made = document.createElement(kind);
  made.className = className;
  made.textContent = text;
  return made;
}

const number = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : "?");

function row(event) {
  const decision = event.kind === "decision";
  const who = decision ? event.label || "unknown person" : ["start", "stop"].includes(event.kind) ? "terminal" : event.kind;
  const outcome = event.outcome || { start: "started", stop: "stopped" }[event.kind];
  const numbers = decision ? `${number(event.confidence, 2)}, needs ${number(event.threshold, 2)}` : "";
  const time = element("time", "", new Date(event.utc).toLocaleTimeString());
  time.dateTime = event.utc;
  const made = element("li", decision && ["granted", "denied"].includes(event.outcome) ? event.outcome : "", "");
  made.append(
    element("span", "who", who),
    element("span", "outcome", outcome || ""),
    element("span", "why", [event.reason, numbers].filter(Boolean).join(" · ")),
    time,
  );
  return made;
}

function showEvents(events) {
  const list = part("events");
  for (const event of events.slice().reverse()) {
    if (!seen.has(event.event_id)) {
      seen.add(event.event_id);
      list.prepend(row(event));
    }
  }
  while (list.children.length > 50) list.lastElementChild.remove();
  part("none").hidden = list.children.length > 0;
}

function showHealth(health) {
  const up = health.camera_up === true;
  part("health").className = up ? "up" : "down";
  const state = health.camera_frozen === true ? "frozen" : "lost";
  part("health").textContent = up ? `camera up, ${number(health.fps, 1)} fps` : `camera ${state}`;
  showProblem(up ? "" : health.error ? `The camera is ${state}: ${health.error}` : `The camera is ${state}.`);
  part("thresholds").textContent = health.thresholds || "";
  const facts = [
    ["camera", health.camera],
    ["kit", health.kit],
    ["frames", health.frames],
    ["last frame", typeof health.frame_age_seconds === "number" ? `${number(health.frame_age_seconds, 1)} s ago` : "none"],
    ["temperature", typeof health.temperature_celsius === "number" ? `${number(health.temperature_celsius, 0)} °C` : ""],
    ...Object.entries(health.counters || {}),
  ];
  part("facts").replaceChildren(
    ...facts
      .filter(([, value]) => value !== "" && value !== null && value !== undefined)
      .map(([name, value]) => {
        const pair = document.createElement("div");
        pair.append(element("dt", "", name), element("dd", "", String(value)));
        return pair;
      }),
  );
}

function showProblem(text) {
  const box = part("problem");
  if (box.textContent !== text) box.textContent = text; // screen readers announce a change
  box.hidden = text === "";
  part("video").classList.toggle("old", text !== "");
}

// The stream; if the server rejects it, single frames for a while.
const video = part("video");
let stillsLeft = 0;
function watch() {
  const path = stillsLeft > 0 ? "/frame.jpg" : "/stream.mjpg";
  video.src = `${path}?${Date.now()}`;
}
video.addEventListener("error", () => {
  stillsLeft = 10;
  video.hidden = true;
  setTimeout(watch, 1000);
});
video.addEventListener("load", () => {
  video.hidden = false;
  part("live").style.aspectRatio = `${video.naturalWidth} / ${video.naturalHeight}`;
  if (stillsLeft > 0) {
    stillsLeft -= 1;
    setTimeout(watch, 500);
  }
});

async function request(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(5000) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

async function refresh() {
  try {
    const [health, events] = await Promise.all([request("/health.json"), request("/events.json")]);
    showHealth(health);
    showEvents(events.events);
    // A broken stream looks like a still image. Only the server knows that no client receives it.
    if (!connected || (health.streams === 0 && stillsLeft === 0 && health.frames > 0)) watch();
    connected = true;
  } catch {
    connected = false;
    part("health").className = "down";
    part("health").textContent = "no connection";
    showProblem("The terminal does not respond.");
  }
  setTimeout(refresh, 1000);
}

refresh();
