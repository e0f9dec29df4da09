// Upload photos one by one and show the result of each at once; check photos that were not checked yet; choose a face.
"use strict";

const statusLine = document.getElementById("status");
const refused = document.getElementById("refused");
const PHOTO = /\.(jpe?g|png|pgm|bmp|webp)$/i;

function fill(text, fields) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in fields ? fields[name] : whole));
}

function refuse(file, error) {
  const item = document.createElement("li");
  item.textContent = `${file}: ${error.message}`;
  refused.append(item);
}

function toElement(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim(); // made by our own server, escaped there
  return template.content.firstElementChild;
}

/** Send photos ([{path, file}]) one after the other. `each` gets the answer for each. */
async function sendAll(photos, zone, each) {
  let added = 0;
  refused.replaceChildren();
  for (const [index, photo] of photos.entries()) {
    statusLine.textContent = fill(zone.dataset.progress, { done: index + 1, total: photos.length, file: photo.file.name });
    const form = new FormData();
    form.append("photos", photo.file, "photo");
    try {
      each(await post(photo.path, form));
      added += 1;
    } catch (error) {
      refuse(photo.label || photo.file.name, error);
    }
  }
  statusLine.textContent = fill(zone.dataset.done, { added, total: photos.length });
  return added;
}

/** Use the files of an input when they are chosen, also if that was before this script ran. */
function onChoice(input, use) {
  const taken = async () => {
    if (!input.files.length) return;
    await use([...input.files]);
    input.value = "";
  };
  input.addEventListener("change", taken);
  taken();
}

function onDrop(zone, use) {
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    use(event.dataTransfer);
  });
}

/** Files that are dropped beside a zone do nothing: the browser would leave the page to show them. */
function refuseOtherDrops() {
  for (const kind of ["dragover", "drop"]) {
    window.addEventListener(kind, (event) => {
      if (event.defaultPrevented || ![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "none";
    });
  }
}

/** All files below what was dropped, as [{path, file}]; path as anna/1.jpg. */
async function droppedFiles(transfer) {
  const found = [];
  async function walk(entry, path) {
    if (entry.isFile) {
      found.push({ path: path + entry.name, file: await new Promise((good, bad) => entry.file(good, bad)) });
    } else {
      const reader = entry.createReader();
      for (;;) {
        const part = await new Promise((good, bad) => reader.readEntries(good, bad));
        if (!part.length) break;
        for (const child of part) await walk(child, `${path}${entry.name}/`);
      }
    }
  }
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  for (const entry of entries) await walk(entry, "");
  return found;
}

refuseOtherDrops();

// The page of one person.
const person = document.getElementById("drop-photos");
const photos = document.getElementById("photos");

function showCard(answer) {
  const none = document.getElementById("no-photos");
  if (none) none.remove();
  photos.prepend(toElement(answer.html));
}

/** Show what the new photos change: counts, earlier cards that they repeat, and the forms for a person who was new. */
async function renew() {
  const response = await fetch(location.pathname).catch(() => null);
  if (!response || !response.ok) return;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const card of [...page.querySelectorAll("#photos > li")]) {
    const own = [...photos.children].find((one) => one.dataset.file === card.dataset.file);
    if (own && own.outerHTML !== card.outerHTML && !own.contains(document.activeElement)) own.replaceWith(card);
  }
  document.getElementById("counts").replaceWith(page.getElementById("counts"));
  const few = document.getElementById("few");
  if (few && !page.getElementById("few")) few.remove();
  for (const section of page.querySelectorAll("main > section[id]")) {
    if (!document.getElementById(section.id)) document.getElementById("main").append(section);
  }
}

async function addPhotos(files) {
  const path = person.dataset.upload;
  if (await sendAll(files.map((file) => ({ path, file })), person, showCard)) await renew();
}

if (person) {
  onDrop(person, async (transfer) => {
    const files = await droppedFiles(transfer);
    await addPhotos(files.map((one) => one.file).filter((file) => PHOTO.test(file.name)));
  });
  document.getElementById("upload-button").hidden = true; // the choice itself starts the upload
  onChoice(document.getElementById("photos-input"), addPhotos);
}

if (photos) {
  photos.addEventListener("click", (event) => {
    const face = event.target.dataset ? event.target.dataset.face : undefined;
    const button = face && event.target.closest(".faces").querySelector(`button[value="${face}"]`);
    if (button) button.click();
  });
  (async () => {
    for (const waiting of [...photos.querySelectorAll("[data-check]")]) {
      const response = await fetch(waiting.dataset.check, { headers: { Accept: "application/json" } });
      if (response.ok) waiting.closest(".photo").replaceWith(toElement((await response.json()).html));
    }
  })();
}

// The page of all people: folders of photos.
const many = document.getElementById("drop-people");

async function addFolders(found) {
  const usable = found.filter((one) => PHOTO.test(one.path) && one.path.includes("/") && !/(^|\/)[.]/.test(one.path));
  if (!usable.length) {
    statusLine.textContent = many.dataset.none;
    return;
  }
  const sent = usable.map((one) => {
    const name = one.path.split("/").at(-2);
    return { path: `/people/${encodeURIComponent(name)}/photos`, file: one.file, label: one.path };
  });
  const added = await sendAll(sent, many, () => {});
  if (added && !refused.children.length) window.location.assign("/people");
}

if (many) {
  onChoice(document.getElementById("folder"), (files) => addFolders(files.map((file) => ({ path: file.webkitRelativePath, file }))));
  onDrop(document.getElementById("add"), async (transfer) => {
    document.getElementById("many").open = true;
    const found = await droppedFiles(transfer);
    const zip = found.find((one) => /\.zip$/i.test(one.path));
    if (!zip) {
      await addFolders(found);
      return;
    }
    const form = new FormData(document.getElementById("import-zip"));
    form.set("zip", zip.file);
    try {
      window.location.assign((await post("/people-import", form)).go);
    } catch (error) {
      refuse(zip.file.name, error);
    }
  });
}
