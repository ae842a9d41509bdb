// The page of `seqtool demo`: waits until the models are loaded, then shows the models of one task at a time.

import { kept, link } from "./address.js";
import { get } from "./asking.js";
import { captionsView } from "./captions.js";
import { choice, counted, fill, h, inert, later } from "./elements.js";
import { textsView } from "./texts.js";
import { samples } from "./watching.js";
import { wordsView } from "./words.js";

const VIEWS = {
  translate: { title: "Words", make: wordsView },
  caption: { title: "Pictures", make: captionsView },
  generate: { title: "Texts", make: textsView },
};
const POLL_DELAY = 400; // milliseconds between two requests for the server's state while models are loading

const state = document.getElementById("state");
const page = kept("");
if (location.search) history.replaceState(null, "", location.pathname + location.hash); // removes the token, which a cookie stores

async function begin() {
  const served = await get("/api/model");
  if (served.state === "loading") {
    state.textContent = "Loading the models…";
    setTimeout(attempt, POLL_DELAY);
    return;
  }
  if (served.state === "failed") throw new Error(served.problem);
  let learnt = [];
  let unreadable = null;
  try {
    learnt = await get("/api/samples");
  } catch (error) {
    if (error.offline) throw error;
    unreadable = h("p", { class: "error", role: "alert" }, error.message);
  }
  const models = served.models.map((model, place) => ({ ...model, place }));
  const commands = Object.keys(VIEWS).filter((command) => models.some((model) => model.command === command));
  const view = h("div", {});
  const made = {};
  let current = null;
  async function show(command) {
    current = command;
    page.set("task", command === commands[0] ? null : command);
    const shown = models.filter((model) => model.command === command);
    const names = shown.map((model) => `${model.name} (${counted(model.parameters)} parameters)`);
    fill(state, names.join(", "));
    document.title = inert(`${shown.map((model) => model.name).join(", ")}: seqtool demo`);
    made[command] ??= await VIEWS[command].make(shown, kept(command));
    const content = made[command];
    const watched = shown.filter(({ place }) => learnt[place]).map(({ name, place }) => later(`What ${name} wrote while it learnt`, () => samples(learnt[place])));
    const learning = watched.length ? h("section", { class: "learning", "aria-labelledby": "learning" }, h("h2", { id: "learning" }, "From the training"), watched) : null;
    if (command === current) fill(view, content, learning); // another task may have been chosen meanwhile
  }
  const task = commands.includes(page.get("task", "")) ? page.get("task", "") : commands[0];
  const tasks = choice("Task", commands.map((command) => [command, VIEWS[command].title]), task, (command) => show(command).catch(problem));
  fill(document.getElementById("switches"), commands.length > 1 ? tasks : null, largeType(), copyLink());
  await show(task);
  const missing = served.problem ? h("p", { class: "error", role: "alert" }, `Left out, since it cannot be loaded: ${served.problem}`) : null;
  fill(document.getElementById("view"), missing, unreadable, view, interfaces(served));
}

/** A button that switches to the full width and large type, for a projector. */
function largeType() {
  const button = h("button", { type: "button", onclick: () => set(!page.get("large", false)) }, "Large type");
  function set(large) {
    document.documentElement.classList.toggle("large", large);
    button.setAttribute("aria-pressed", String(large));
    page.set("large", large || null);
  }
  set(page.get("large", false));
  return button;
}

function copyLink() {
  const said = h("span", { class: "status", role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(link());
      fill(said, "Copied.");
    } catch {
      fill(said, "The browser does not allow it: copy the address of this page."); // a page without https has no clipboard
    }
  };
  return h("span", { class: "controls" }, h("button", { type: "button", onclick: copy }, "Copy link"), said);
}

function interfaces({ limits }) {
  const calls = [
    ["POST /api/translate", '{"sentences": ["…"], "prefixes": ["…"], "likeliest": 5, "weights": true, "tree": true, "model": 0, "settings": {"beam": 5}}'],
    ["POST /api/score", '{"sources": ["…"], "references": ["…"], "likeliest": 5}'],
    ["POST /api/why", '{"source": "…", "translation": "…"}'],
    ["POST /api/caption", 'a form with files "images" and a field "request", or {"scene": {…}}'],
    ["POST /api/inside", '{"source": "…", "text": "…"} for states, gates and heads; with "method": "integrated" for attributions, "position": 2, "other": "…" for a contrast'],
    ["POST /api/generate", '{"prompts": ["…"], "settings": {"temperature": 0.8}}'],
    ["POST /api/next", '{"text": "…", "likeliest": 10}'],
    ["GET /api/model", "names, settings and limits"],
    ["GET /api/samples", "what each model wrote, and where it looked, at the validations of its training"],
    ["GET /api/scenes", "some built-in scenes, and what objects there can be"],
  ];
  const note = `Answers are those of format=jsonl. At most ${counted(limits.sentences)} texts and ${counted(limits.characters)} characters a request; a refusal is one sentence, with a status from 400 on.`;
  return h("details", { class: "interface" }, h("summary", {}, "The JSON interface"), h("p", {}, note), h("dl", { class: "facts" }, calls.map(([name, body]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("code", {}, body))))));
}

function problem(error) {
  fill(state, h("span", { class: "error", role: "alert" }, error.message));
  if (error.offline) setTimeout(attempt, 5 * POLL_DELAY);
}

function attempt() {
  begin().catch(problem);
}

attempt();
