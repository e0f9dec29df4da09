// Guided photos with the browser's camera: send a frame about three times a second, and show what the server asks for.
"use strict";

const box = document.getElementById("capture");
const video = document.getElementById("video");
const EVERY_MS = 330;
const WIDTH = 960;
let stream = null;
let token = "";

function show(id, text) {
  const place = document.getElementById(id);
  if (place.textContent !== text) place.textContent = text; // a screen reader reads each change
}

function showState(state) {
  show("number", state.number);
  show("request", state.request);
  show("advice", state.advice);
  const taken = document.getElementById("taken");
  taken.max = state.wanted;
  taken.value = state.taken;
}

function showRunning(is) {
  document.getElementById("begin").hidden = is;
  document.getElementById("stop").hidden = !is;
  document.getElementById("picture").hidden = !is;
}

function stop(text) {
  if (stream) stream.getTracks().forEach((track) => track.stop());
  stream = null;
  token = "";
  video.srcObject = null;
  showRunning(false);
  show("request", "");
  show("number", "");
  show("advice", text || "");
}

function problem(text) {
  stop();
  show("problem", text);
}

function grab() {
  const canvas = document.createElement("canvas");
  canvas.width = Math.min(WIDTH, video.videoWidth);
  canvas.height = Math.round((canvas.width * video.videoHeight) / video.videoWidth);
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
}

function showAlike(answer) {
  stop();
  document.getElementById("alike").hidden = false;
  show("alike-text", answer.alike);
  document.getElementById("alike-page").href = answer.page;
  const picture = document.getElementById("alike-picture");
  picture.hidden = !answer.picture;
  if (answer.picture) picture.src = answer.picture;
  picture.alt = answer.name;
}

async function send(own) {
  while (stream && token === own) {
    const started = performance.now();
    const form = new FormData();
    form.append("token", own);
    form.append("frame", await grab(), "frame.jpg");
    let answer;
    try {
      answer = await post(`${box.dataset.path}/frame`, form);
    } catch (error) {
      if (token === own) problem(error.message);
      return;
    }
    if (token !== own) return;
    if (answer.go) {
      stop();
      window.location.assign(answer.go);
      return;
    }
    if (answer.alike) {
      showAlike(answer);
      return;
    }
    showState(answer);
    await new Promise((done) => setTimeout(done, Math.max(0, EVERY_MS - (performance.now() - started))));
  }
}

async function begin(anyway) {
  show("problem", "");
  document.getElementById("alike").hidden = true;
  if (!navigator.mediaDevices) {
    problem(box.dataset.insecure);
    return;
  }
  let own;
  try {
    own = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 }, facingMode: "user" }, audio: false });
  } catch (error) {
    problem(error.name === "NotAllowedError" ? box.dataset.refused : box.dataset.noCamera);
    return;
  }
  if (stream) { // a second click on the button while the browser asked
    own.getTracks().forEach((track) => track.stop());
    return;
  }
  stream = own;
  own.getVideoTracks()[0].addEventListener("ended", () => problem(box.dataset.noCamera)); // unplugged; stop() does not cause it
  video.srcObject = own;
  showRunning(true);
  const form = new FormData();
  if (anyway) form.append("alike", "1");
  try {
    await video.play();
    const answer = await post(`${box.dataset.path}/begin`, form);
    if (stream !== own) return; // stopped in between
    token = answer.token;
    showState(answer);
    await send(token);
  } catch (error) {
    if (stream === own) problem(error.message);
  }
}

document.getElementById("begin").addEventListener("click", () => begin(false));
document.getElementById("anyway").addEventListener("click", () => begin(true));
document.getElementById("stop").addEventListener("click", () => stop(box.dataset.stopped));
window.addEventListener("pagehide", () => stop());
