// The state of the page, stored in its address after #, so that a link or a reload shows the same state.

const DELAY = 150; // milliseconds between changes of the address, which browsers limit to a few a second
const values = new URLSearchParams(location.hash.slice(1));
let timer = null;

/** The stored values of a part of the page. `get` returns `otherwise` for a missing value or one of another type. */
export function kept(part) {
  const key = (name) => (part ? `${part}.${name}` : name);
  function get(name, otherwise) {
    const text = values.get(key(name));
    if (text === null || typeof otherwise === "string") return text ?? otherwise;
    try {
      const value = JSON.parse(text);
      return value !== null && typeof value === typeof otherwise && Array.isArray(value) === Array.isArray(otherwise) ? value : otherwise;
    } catch {
      return otherwise; // the address was cut off or mistyped
    }
  }
  /** Store a value; null removes it. */
  function set(name, value) {
    if (value === null) values.delete(key(name));
    else values.set(key(name), typeof value === "string" ? value : JSON.stringify(value));
    clearTimeout(timer);
    timer = setTimeout(link, DELAY);
  }
  return { get, set };
}

/** Write the page's state into its address and return the address. */
export function link() {
  clearTimeout(timer);
  history.replaceState(null, "", `${location.pathname}${values.size ? `#${values}` : ""}`);
  return location.href;
}

window.addEventListener("hashchange", () => location.reload()); // the user opened another link to the page in this window
window.addEventListener("pagehide", link);
