// The page of `seqtool demo`: waits until the models are loaded, then shows what they do.

import { get } from "./asking.js";
import { captionsView } from "./captions.js";
import { counted, fill, h, inert } from "./elements.js";
import { textsView } from "./texts.js";
import { wordsView } from "./words.js";

const VIEWS = { translate: wordsView, caption: captionsView, generate: textsView };
const EVERY = 400; // milliseconds between two looks at whether the models are loaded

const state = document.getElementById("state");
if (location.search) history.replaceState(null, "", location.pathname); // the token, which stays in a cookie

async function begin() {
  const served = await get("/api/model");
  if (served.state === "loading") {
    state.textContent = "Loading the model…";
    setTimeout(attempt, EVERY);
    return;
  }
  if (served.state === "failed") throw new Error(served.problem);
  const names = served.models.map((one) => `${one.name} (${counted(one.parameters)} parameters)`);
  fill(state, names.join(", "));
  document.title = inert(`${served.models.map((one) => one.name).join(", ")}: seqtool demo`);
  fill(document.getElementById("view"), await VIEWS[served.models[0].command](served.models), interfaces(served));
}

function interfaces({ limits }) {
  const calls = [
    ["POST /api/translate", '{"sentences": ["…"], "prefixes": ["…"], "likeliest": 5, "weights": true, "tree": true, "model": 0, "settings": {"beam": 5}}'],
    ["POST /api/score", '{"sources": ["…"], "references": ["…"], "likeliest": 5}'],
    ["POST /api/why", '{"source": "…", "translation": "…"}'],
    ["POST /api/caption", 'a form with files "images" and a field "request", or {"scene": {…}}'],
    ["POST /api/generate", '{"prompts": ["…"], "settings": {"temperature": 0.8}}'],
    ["POST /api/next", '{"text": "…", "likeliest": 10}'],
    ["GET /api/model", "names, settings and limits"],
    ["GET /api/scenes", "some built-in scenes, and what objects there can be"],
  ];
  const note = `Answers are those of format=jsonl. At most ${counted(limits.sentences)} texts and ${counted(limits.characters)} characters a request; a refusal is one sentence, with a status from 400 on.`;
  return h("details", { class: "interface" }, h("summary", {}, "The JSON interface"), h("p", {}, note), h("dl", { class: "facts" }, calls.map(([name, body]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("code", {}, body))))));
}

function attempt() {
  begin().catch((error) => fill(state, h("span", { class: "error", role: "alert" }, error.message)));
}

attempt();
