// The choice of verdict and section is part of the address: #verdict=yes&section=5.3.
(() => {
  const box = document.currentScript.closest(".at-claims");
  const rows = [...box.querySelectorAll("tr[data-verdict]")];
  const buttons = [...box.querySelectorAll("button")];
  const section = box.querySelector("select");
  const counted = box.querySelector("output");
  const chosen = { verdict: "", section: "" };
  const show = () => {
    for (const row of rows) {
      const sections = row.dataset.section.split(", ");
      row.hidden =
        (chosen.verdict && row.dataset.verdict !== chosen.verdict) ||
        (chosen.section && !sections.includes(chosen.section));
    }
    for (const button of buttons)
      button.setAttribute("aria-pressed", String(button.value === chosen.verdict));
    section.value = chosen.section;
    counted.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
  };
  const choose = (name, value) => {
    chosen[name] = value;
    const address = Object.entries(chosen).filter(([, text]) => text);
    history.replaceState(null, "", `#${new URLSearchParams(address)}`);
    show();
  };
  const readAddress = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (!asked.has("verdict") && !asked.has("section")) return;
    const known = [...section.options].map((option) => option.value);
    const verdict = asked.get("verdict") || "";
    chosen.verdict = buttons.some((button) => button.value === verdict) ? verdict : "";
    chosen.section = known.includes(asked.get("section")) ? asked.get("section") : "";
    show();
  };
  for (const button of buttons)
    button.addEventListener("click", () => choose("verdict", button.value));
  section.addEventListener("change", () => choose("section", section.value));
  addEventListener("hashchange", readAddress);
  box.querySelector("form").hidden = false;
  show();
  readAddress();
})();
