// Numbers and words packed into text by seqtool/view/packing.py.

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const VALUE = new Map([...DIGITS].map((digit, i) => [digit, i]));

/** Whole numbers of `width` digits each. */
export function integers(text, width) {
  const found = [];
  for (let i = 0; i < text.length; i += width) {
    let value = 0;
    for (let j = i; j < i + width; j += 1) value = 64 * value + VALUE.get(text[j]);
    found.push(value);
  }
  return found;
}

/** Numbers from 0 to `most`. */
export function fractions(text, most = 1) {
  return integers(text, 2).map((value) => (value / 4095) * most);
}

/** Rows of `width` numbers from 0 to 1. */
export function matrix(text, width) {
  const values = fractions(text);
  return Array.from({ length: values.length / width }, (_, i) => values.slice(i * width, (i + 1) * width));
}
