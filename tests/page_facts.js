// What tests/test_browser.py asks of a loaded page.
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];

  // Formulas that were found and typeset, TeX errors, and pictures without words for who cannot see them.
  const facts = () => ({
    formulas: all(".math").length,
    typeset: all(".math").filter((formula) => formula.querySelector("mjx-container")).length,
    wrong: all("mjx-merror, mjx-container [style*='color: red']").map(
      (error) => error.closest(".math").textContent,
    ),
    silent: all(".bd-article img")
      .filter((image) => !image.alt.trim())
      .map((image) => image.src),
  });

  // Text whose contrast with what lies behind it is below 4.5 to 1 (WCAG 2 AA), by that standard's formula.
  const TEXT = ["p", "a:not(.headerlink)", "h1", "h2", "td", "th", "pre", "pre span", "code"];
  const numbers = (colour) => {
    const parts = colour.match(/[\d.]+/g).map(Number);
    return parts.length < 4 ? [...parts, 1] : parts;
  };
  const luminance = (colour) => {
    const linear = colour
      .slice(0, 3)
      .map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return [255, 255, 255, 1];
  };
  const contrast = (element) => {
    const [low, high] = [
      luminance(numbers(getComputedStyle(element).color)),
      luminance(behind(element)),
    ].sort((one, two) => one - two);
    return (high + 0.05) / (low + 0.05);
  };
  const faint = () =>
    all(TEXT.map((name) => `.bd-article ${name}`).join(", "))
      .filter((element) => element.textContent.trim() && contrast(element) < 4.5)
      .map(
        (element) =>
          `${element.tagName} ${contrast(element).toFixed(2)} ${element.textContent.trim().slice(0, 40)}`,
      );

  // Colours change at once from here on.
  const stopFading = () => {
    const style = document.createElement("style");
    style.textContent = "* { transition: none !important; animation: none !important; }";
    document.head.append(style);
  };

  // For axe-core's checks of colours, which are slow: of all words of the same colour, size and weight before and beside
  // the same colours, leave only the first in the page. The answer for the others is the same, and there are thousands.
  let putBack = () => {};
  const keepOneOfEachColour = () => {
    const grounds = new Map();
    const ground = (element) => {
      if (!element) return "";
      if (!grounds.has(element)) {
        const { backgroundColor, backgroundImage, opacity } = getComputedStyle(element);
        const plain =
          backgroundColor === "rgba(0, 0, 0, 0)" && backgroundImage === "none" && opacity === "1";
        grounds.set(
          element,
          (plain ? "" : `${backgroundColor} ${backgroundImage} ${opacity};`) +
            ground(element.parentElement),
        );
      }
      return grounds.get(element);
    };
    const kinds = new Map();
    all("body *").forEach((element) => {
      if (
        ![...element.childNodes].some(
          (node) => node.nodeType === Node.TEXT_NODE && node.data.trim(),
        )
      )
        return;
      const { color, fontSize, fontWeight, visibility } = getComputedStyle(element);
      if (visibility !== "visible" || !element.getClientRects().length) return;
      const around = getComputedStyle(element.parentElement).color;
      const kind = [element.tagName, color, around, fontSize, fontWeight, ground(element)].join();
      if (!kinds.has(kind)) kinds.set(kind, element);
    });
    const kept = new Set();
    kinds.forEach((first) => {
      for (let e = first; e && !kept.has(e); e = e.parentElement) kept.add(e);
    });
    const away = [...kept]
      .filter((element) => document.body.contains(element))
      .flatMap((element) => [...element.children])
      .filter((element) => !kept.has(element));
    const places = away.map((element) => {
      const place = document.createComment("");
      element.replaceWith(place);
      return place;
    });
    putBack = () => places.forEach((place, index) => place.replaceWith(away[index]));
  };

  window.bookTest = { facts, faint, stopFading, keepOneOfEachColour, putBack: () => putBack() };
})();
