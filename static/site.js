// Small corrections to what Sphinx and the theme write, for readers who use a keyboard or a screen reader.
(() => {
  // A box that scrolls can be reached with the Tab key; the theme sees to code and tables, this to formulas and the rest.
  const SCROLLS = ".bd-article mjx-container[display='true'], .bd-article .math, .bd-article table";
  const reach = () =>
    document.querySelectorAll(SCROLLS).forEach((box) => {
      const wide =
        box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== "visible";
      if (wide) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    });

  // The translator's views: a frame takes the place of the stored example, as high as what it shows, in the page's colours.
  const liveViews = () => {
    const colours = () => (document.documentElement.dataset.theme === "dark" ? "dark" : "light");
    const frames = [...document.querySelectorAll(".translator-view[data-src]")].map((view) => {
      const frame = document.createElement("iframe");
      frame.loading = "lazy";
      frame.title = view.dataset.title;
      frame.src = `${view.dataset.src}&theme=${colours()}`;
      view.prepend(frame);
      view.classList.add("live");
      return frame;
    });
    window.addEventListener("message", ({ source, data }) => {
      const frame = frames.find((one) => one.contentWindow === source);
      if (frame && Number.isFinite(data.height))
        frame.style.height = `${Math.ceil(data.height) + 4}px`;
    });
    new MutationObserver(() =>
      frames.forEach((frame) => frame.contentWindow?.postMessage({ theme: colours() }, "*")),
    ).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  };

  const start = () => {
    // Sphinx writes the bibliography as a list whose children are no list items.
    document
      .querySelectorAll("[role='list'] > .citation")
      .forEach((work) => work.setAttribute("role", "listitem"));
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
      folded.forEach((part) => {
        part.open = true;
      });
    });
    window.addEventListener("afterprint", () => {
      document.documentElement.dataset.theme = theme;
      folded.forEach((part) => {
        part.open = false;
      });
    });
    window.MathJax?.startup?.promise?.then(reach);
    liveViews();
  };
  // After the page and its formulas, which are typeset when MathJax's own script has loaded.
  if (document.readyState === "complete") start();
  else window.addEventListener("load", start);
})();
