// What tests/test_browser.py asks of a loaded page.
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];

  // Formulas that were found and typeset, TeX errors, and pictures without words for who cannot see them.
  const facts = () => ({
    formulas: all(".math").length,
    typeset: all(".math").filter((formula) => formula.querySelector("mjx-container")).length,
    wrong: all("mjx-merror, mjx-container [style*='color: red']").map((error) => error.closest(".math").textContent),
    silent: all(".bd-article img").filter((image) => !image.alt.trim()).map((image) => image.src),
  });

  // Text whose contrast with what lies behind it is below 4.5 to 1 (WCAG 2 AA), by that standard's formula.
  const TEXT = ["p", "a:not(.headerlink)", "h1", "h2", "td", "th", "pre", "pre span", "code"];
  const numbers = (colour) => {
    const parts = colour.match(/[\d.]+/g).map(Number);
    return parts.length < 4 ? [...parts, 1] : parts;
  };
  const luminance = (colour) => {
    const linear = colour.slice(0, 3).map((part) => part / 255)
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
    const [low, high] = [luminance(numbers(getComputedStyle(element).color)), luminance(behind(element))]
      .sort((one, two) => one - two);
    return (high + 0.05) / (low + 0.05);
  };
  const faint = () => all(TEXT.map((name) => `.bd-article ${name}`).join(", "))
    .filter((element) => element.textContent.trim() && contrast(element) < 4.5)
    .map((element) => `${element.tagName} ${contrast(element).toFixed(2)} ${element.textContent.trim().slice(0, 40)}`);

  window.bookTest = { facts, faint };
})();
