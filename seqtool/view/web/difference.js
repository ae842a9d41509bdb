// Marks the words in which two texts differ.

import { h } from "./elements.js";

const UNSPACED = ["Han", "Hira", "Kana", "Thai", "Lao", "Khmr", "Mymr"].map((one) => `\\p{scx=${one}}`).join(""); // scripts without spaces between words
const WORD = new RegExp(`[${UNSPACED}]\\p{M}*\\s*|[^\\s${UNSPACED}]+\\s*`, "gu"); // a word with the space after it
const MAX_PAIRS = 4000000; // pairs of words; longer texts are compared only nearby
const NEARBY = 20; // in longer texts, the number of words in which an equal word is looked for

/**
 * The text with marks on the words that `other` lacks, and with the words that only `other` has, struck out. These are
 * the words outside a longest common subsequence of both.
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

/** An element that contains the word, and the space after the word. */
function split(tag, word) {
  return [h(tag, {}, word.trim()), word.slice(word.trim().length)];
}

/** The index pairs of a longest common subsequence of two lists; for more than MAX_PAIRS, of a common subsequence. */
function common(a, b) {
  if (a.length * b.length > MAX_PAIRS) return near(a, b);
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
    const j = b.slice(from, from + NEARBY).indexOf(word);
    if (j < 0) return;
    places.push([i, from + j]);
    from += j + 1;
  });
  return places;
}
