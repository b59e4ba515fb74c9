// What the address asks for, after its #: a view alone (translate, tokens, beam, attention, knock-out), the text, the beam width,
// the length penalty, the colours. A book shows a view in a frame, by an address such as index.html#view=beam&text=I%20like%20tea.
// It is told the height of the page, and says when its reader goes over to dark or light.
const inBook = (() => {
  const ASKED = ["text", "beam", "alpha"],
    LONGEST = 5000,
    root = document.documentElement;
  const read = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const name of ASKED) if (asked.has(name)) part(name).value = asked.get(name);
    return asked;
  };
  const asked = read();
  if (asked.has("view")) root.dataset.view = asked.get("view");
  // A page of its own keeps its address up to date, so that it can be sent to a friend.
  const write = () => {
    if (parent !== window || asked.has("view")) return;
    const values = ASKED.map((name) => [name, part(name).value]).filter(
      ([, value]) => value.length <= LONGEST,
    );
    history.replaceState(null, "", `#${new URLSearchParams(values)}`);
  };
  const tell = () => parent.postMessage({ height: document.body.offsetHeight }, "*");
  if (parent !== window) {
    new ResizeObserver(tell).observe(document.body);
    addEventListener("message", ({ source, data }) => {
      if (source === parent && ["light", "dark"].includes(data?.theme))
        root.dataset.theme = data.theme;
    });
  }
  return { theme: asked.get("theme"), read, write };
})();
