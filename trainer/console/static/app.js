// Shared by all pages: forms that ask before they act and are sent once, and fetch() with the CSRF value.
"use strict";

const csrf = document.querySelector('meta[name="csrf"]').content;
const offline = document.querySelector('meta[name="offline"]').content;

/** POST a form or JSON answer. Throws an Error whose message is for the person. */
async function post(path, body) {
  const headers = { "X-CSRF": csrf, Accept: "application/json" };
  const response = await fetch(path, { method: "POST", body, headers }).catch(() => { throw new Error(offline); });
  const answer = await response.json().catch(() => ({ problem: response.statusText }));
  if (!response.ok) throw new Error([answer.problem, answer.hint].filter(Boolean).join(" "));
  return answer;
}

// The second click of a double click sends no form again: a training would start, and then be refused.
document.addEventListener("click", (event) => {
  const button = event.detail > 1 && event.target.closest("button");
  if (button && button.form && button.type === "submit") event.preventDefault();
}, true);

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm || event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});
