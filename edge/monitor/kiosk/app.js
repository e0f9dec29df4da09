"use strict";
// Asks the terminal for its state 5 times per second, and for a picture 10 times. Each answer is new: nothing waits in a buffer
// that could be shown later. Without an answer, the page is out of order. Text is set with textContent only.

const STATE_MS = 200;
const PICTURE_MS = 100;
const RETRY_MS = 1000;
const TIMEOUT_MS = 1500;
const OLD_MS = 2000; // an older answer is not shown
const HOLD_MS = 700; // advice stays this long, so that it can be read
const LONG = 28; // letters of a title, from which on it is smaller
const AT_ONCE = ["granted", "denied", "left", "right", "down", "out_of_order"];
const OUT_OF_ORDER = "out_of_order";
const TONES = {
  // [Hz, start, seconds]
  granted: [[880, 0, 0.15], [1320, 0.16, 0.3]],
  denied: [[220, 0, 0.5]],
  left: [[660, 0, 0.12]],
  right: [[660, 0, 0.12]],
  down: [[660, 0, 0.12]],
};

const part = (id) => document.getElementById(id);
const picture = part("picture");
const wanted = new URLSearchParams(location.search).get("lang");
let messages = {};
let answer = { language: "en" }; // the last one
let answered = -Infinity; // when it was shown
let changed = -Infinity; // when the state on the page changed
let audio = null;

async function request(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response;
}

function show(state, name) {
  const now = performance.now();
  const language = wanted in messages ? wanted : answer.language;
  const texts = messages[language];
  const text = texts[state];
  const title = name ? text.named.replace("{name}", () => name) : text.title;
  const detail = answer.help && [OUT_OF_ORDER, "denied"].includes(state) ? answer.help : text.detail;
  const isNew = document.body.dataset.state !== state;
  if (isNew && !AT_ONCE.includes(state) && now - changed < HOLD_MS) return; // the next answer comes soon
  document.documentElement.lang = language;
  document.title = texts.page;
  picture.setAttribute("aria-label", texts.picture);
  picture.classList.toggle("mirror", answer.mirror !== false);
  if (isNew) {
    changed = now;
    document.body.dataset.state = state;
    play(state);
  }
  for (const icon of document.querySelectorAll("use")) icon.setAttribute("href", `#${state}`);
  // Screen readers announce every change of the text, so there must be no other.
  for (const [id, words] of [["title", title], ["detail", detail]]) {
    if (part(id).textContent !== words) part(id).textContent = words;
  }
  part("title").classList.toggle("long", title.length > LONG);
  if (state === OUT_OF_ORDER) picture.hidden = true;
}

async function watchState() {
  try {
    const newest = await (await request("/kiosk/state.json")).json();
    if (answer.version && answer.version !== newest.version) location.reload(); // the terminal was updated
    answer = newest;
    if (answer.sound && audio === null) audio = new AudioContext();
    show(answer.state, answer.name);
    answered = performance.now();
  } catch {
    // watchAge sees it.
  }
  setTimeout(watchState, STATE_MS);
}

function watchAge() {
  // Not in watchState: it may wait for an answer.
  if (performance.now() - answered > OLD_MS) show(OUT_OF_ORDER, null);
}

async function watchPicture() {
  let pause = RETRY_MS;
  try {
    const bitmap = await createImageBitmap(await (await request("/kiosk/frame.jpg")).blob());
    if (picture.width !== bitmap.width || picture.height !== bitmap.height) {
      picture.width = bitmap.width;
      picture.height = bitmap.height;
    }
    picture.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    picture.hidden = document.body.dataset.state === OUT_OF_ORDER;
    pause = PICTURE_MS;
  } catch {
    picture.hidden = true;
  }
  setTimeout(watchPicture, pause);
}

function play(state) {
  if (!answer.sound || audio === null || audio.state !== "running") return; // a tone that waits would be heard too late
  for (const [hertz, start, seconds] of TONES[state] ?? []) {
    const tone = audio.createOscillator();
    const volume = audio.createGain();
    const from = audio.currentTime + start;
    tone.frequency.value = hertz;
    volume.gain.setValueAtTime(0.3, from);
    volume.gain.exponentialRampToValueAtTime(0.001, from + seconds);
    tone.connect(volume).connect(audio.destination);
    tone.start(from);
    tone.stop(from + seconds);
  }
}

async function begin() {
  try {
    messages = await (await request("/kiosk/messages.json")).json();
  } catch {
    setTimeout(begin, RETRY_MS);
    return;
  }
  show(OUT_OF_ORDER, null);
  setInterval(watchAge, STATE_MS);
  watchState();
  watchPicture();
}

// Browsers allow sound after a touch, or at once with --autoplay-policy=no-user-gesture-required.
document.addEventListener("pointerdown", () => audio?.resume());
document.addEventListener("contextmenu", (event) => event.preventDefault());
begin();
