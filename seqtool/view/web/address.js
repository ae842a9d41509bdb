// What the page shows, kept in its address after #: a link or a reload shows the same again.

const DELAY = 150; // milliseconds: a browser allows few changes of its address a second
const values = new URLSearchParams(location.hash.slice(1));
let timer = null;

/** The values of one part of the page, by name: `get` gives `otherwise` for one that is not kept or has another type. */
export function kept(part) {
  const key = (name) => (part ? `${part}.${name}` : name);
  function get(name, otherwise) {
    const text = values.get(key(name));
    if (text === null || typeof otherwise === "string") return text ?? otherwise;
    try {
      const value = JSON.parse(text);
      return typeof value === typeof otherwise && Array.isArray(value) === Array.isArray(otherwise) ? value : otherwise;
    } catch {
      return otherwise; // the address was cut, or typed
    }
  }
  /** Keeps a value; null removes it. */
  function set(name, value) {
    if (value === null) values.delete(key(name));
    else values.set(key(name), typeof value === "string" ? value : JSON.stringify(value));
    clearTimeout(timer);
    timer = setTimeout(link, DELAY);
  }
  return { get, set };
}

/** The address of the page as it is shown now. */
export function link() {
  clearTimeout(timer);
  history.replaceState(null, "", `${location.pathname}${values.size ? `#${values}` : ""}`);
  return location.href;
}

window.addEventListener("hashchange", () => location.reload()); // another link in the same window
window.addEventListener("pagehide", link);
