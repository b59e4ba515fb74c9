// What the address asks for, after its #: a view alone (translate, tokens, beam, attention, knock-out), the text, the beam width,
// the colours. A book shows a view in a frame, by an address such as index.html#view=beam&text=I%20like%20tea.
// It is told the height of the page, and says when its reader goes over to dark or light.
const inBook = (() => {
  const asked = new URLSearchParams(location.hash.slice(1)), root = document.documentElement;
  if (asked.has("view")) root.dataset.view = asked.get("view");
  if (asked.has("text")) part("text").value = asked.get("text");
  if (asked.has("beam")) part("beam").value = asked.get("beam");
  const tell = () => parent.postMessage({ height: document.body.offsetHeight }, "*");
  if (parent !== window) {
    new ResizeObserver(tell).observe(document.body);
    addEventListener("message", ({ source, data }) => {
      if (source === parent && ["light", "dark"].includes(data.theme)) root.dataset.theme = data.theme;
    });
  }
  // Each view's link leads to its chapter, where the page knows its book.
  const link = (book) => {
    for (const line of book ? document.querySelectorAll(".chapter") : []) {
      const to = line.firstElementChild;
      to.href = book + to.getAttribute("href");
      to.target = "_top";
      line.hidden = false;
    }
  };
  return { theme: asked.get("theme"), link };
})();
