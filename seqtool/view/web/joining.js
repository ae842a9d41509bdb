// Joins the pieces of words.

const BEGIN = "<begin>"; // how the beginning of a text is shown
export const END = "<end>"; // how its end is shown

/** Groups of one index each: every piece is shown alone. */
export function singly(pieces) {
  return (pieces ?? []).map((_, i) => [i]);
}

/** The indices of the pieces of each word; a word begins with ▁, the mark for a space. */
export function wordGroups(pieces) {
  const groups = [];
  const begins = (piece, i) => i === 0 || piece.startsWith("▁") || piece === END || pieces[i - 1] === BEGIN;
  pieces.forEach((piece, i) => (begins(piece, i) ? groups.push([i]) : groups.at(-1).push(i)));
  return groups;
}

/** The text of each group of pieces. */
export function joinedPieces(pieces, groups) {
  return groups.map((group) => group.map((i) => pieces[i]).join(""));
}

/**
 * Numbers about groups of rows and groups of columns: the sums over the columns of a group, and the sums or, with
 * `mean`, the means over its rows. What is unknown of a piece, null, is unknown of its group.
 */
export function joinedNumbers(values, rows, columns, mean = false) {
  const cell = (row, column) => {
    const parts = row.flatMap((t) => column.map((i) => values[t][i]));
    return parts.includes(null) ? null : parts.reduce((a, b) => a + b, 0) / (mean ? row.length : 1);
  };
  return rows.map((row) => columns.map((column) => cell(row, column)));
}
