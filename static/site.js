// Small corrections to what Sphinx and the theme write, for readers who use a keyboard or a screen reader.
(() => {
  // A box that scrolls can be reached with the Tab key; the theme sees to code and tables, this to formulas and the rest.
  const SCROLLS = ".bd-article mjx-container[display='true'], .bd-article .math, .bd-article table";
  const reach = () => document.querySelectorAll(SCROLLS).forEach((box) => {
    const wide = box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== "visible";
    if (wide) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  });

  const start = () => {
    // Sphinx writes the bibliography as a list whose children are no list items.
    document.querySelectorAll("[role='list'] > .citation").forEach((work) => work.setAttribute("role", "listitem"));
    reach();
    let waiting = 0;
    window.addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(reach, 200);
    });
    // Paper is light: a page read in the dark is printed in its light colours, and with its folded parts open.
    let theme = "";
    let folded = [];
    window.addEventListener("beforeprint", () => {
      theme = document.documentElement.dataset.theme;
      document.documentElement.dataset.theme = "light";
      folded = [...document.querySelectorAll(".bd-article details:not([open])")];
      folded.forEach((part) => { part.open = true; });
    });
    window.addEventListener("afterprint", () => {
      document.documentElement.dataset.theme = theme;
      folded.forEach((part) => { part.open = false; });
    });
    window.MathJax?.startup?.promise?.then(reach);
  };
  // After the page and its formulas, which are typeset when MathJax's own script has loaded.
  if (document.readyState === "complete") start();
  else window.addEventListener("load", start);
})();
