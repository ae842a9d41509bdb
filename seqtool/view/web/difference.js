// Two texts beside each other, with the words that differ marked.

import { h } from "./elements.js";

/** The words of `text`, each marked if it is not part of the longest common subsequence with `other`. */
export function differing(text, other) {
  const a = text.split(/\s+/).filter(Boolean);
  const same = common(a, other.split(/\s+/).filter(Boolean));
  return h("span", {}, a.flatMap((word, i) => [same.has(i) ? word : h("mark", {}, word), " "]));
}

/** The places in `a` of a longest common subsequence of two lists of words. */
function common(a, b) {
  if (a.length * b.length > 250000) return new Set(a.map((_, i) => i).filter((i) => b.includes(a[i])));
  const length = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  const places = new Set();
  for (let i = 0, j = 0; i < a.length && j < b.length; )
    if (a[i] === b[j]) {
      places.add(i);
      i += 1;
      j += 1;
    } else if (length[i + 1][j] >= length[i][j + 1]) i += 1;
    else j += 1;
  return places;
}
