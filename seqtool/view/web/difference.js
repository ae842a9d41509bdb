// Two texts beside each other, with the words that differ marked.

import { h } from "./elements.js";

const ALONE = ["Han", "Hira", "Kana", "Thai", "Lao", "Khmr", "Mymr"].map((one) => `\\p{scx=${one}}`).join(""); // no spaces between words
const WORD = new RegExp(`[${ALONE}]\\p{M}*\\s*|[^\\s${ALONE}]+\\s*`, "gu"); // with the space after it
const MOST = 4000000; // pairs of words that are compared
const NEAR = 20; // words within which the same one is looked for in longer texts

/**
 * `text`, in which the words that `other` lacks are marked, and those that only `other` has stand struck out: the words
 * outside a longest common subsequence of both.
 */
export function differing(text, other) {
  const [a, b] = [text, other].map((one) => one.match(WORD) ?? []);
  const same = common(a.map((one) => one.trim()), b.map((one) => one.trim()));
  const parts = [];
  let [i, j] = [0, 0];
  for (const [x, y] of [...same, [a.length, b.length]]) {
    parts.push(...b.slice(j, y).flatMap((word) => split("del", word)), ...a.slice(i, x).flatMap((word) => split("mark", word)));
    if (x < a.length) parts.push(a[x]);
    [i, j] = [x + 1, y + 1];
  }
  return h("span", {}, parts);
}

/** A word within an element, and the space after it. */
function split(tag, word) {
  return [h(tag, {}, word.trim()), word.slice(word.trim().length)];
}

/** The places of a longest common subsequence of two lists of words; in very long ones, of a common subsequence. */
function common(a, b) {
  if (a.length * b.length > MOST) return near(a, b);
  const length = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  const places = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; )
    if (a[i] === b[j]) places.push([i++, j++]);
    else if (length[i + 1][j] >= length[i][j + 1]) i += 1;
    else j += 1;
  return places;
}

function near(a, b) {
  const places = [];
  let from = 0;
  a.forEach((word, i) => {
    const j = b.slice(from, from + NEAR).indexOf(word);
    if (j < 0) return;
    places.push([i, from + j]);
    from += j + 1;
  });
  return places;
}
