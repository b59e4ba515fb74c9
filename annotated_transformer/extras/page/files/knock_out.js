// Knock out: what the model says when heads, layers or positions are taken away from it.
const knockOut = (() => {
  const KINDS = [
    ["", "no attention"],
    ["cross", "encoder-decoder attention"],
    ["encoder", "encoder self-attention"],
    ["decoder", "decoder self-attention"],
  ];

  // The heads of a choice, as the engine names them ("cross.0.3"); "" for layer or head means all.
  const headsOf = ({ kind, layer, head }, { N, h }) => {
    const all = (n, one) => (one === "" ? [...Array(n).keys()] : [Number(one)]);
    if (!kind) return [];
    return all(N, layer).flatMap((i) => all(h, head).map((j) => `${kind}.${i}.${j}`));
  };

  // The words of both texts, each with whether it belongs to a longest sequence that both have.
  const compare = (one, two) => {
    const [a, b] = [one, two].map((text) => text.split(/\s+/).filter(Boolean));
    const length = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) {
        length[i][j] =
          a[i] === b[j] ? 1 + length[i + 1][j + 1] : Math.max(length[i + 1][j], length[i][j + 1]);
      }
    }
    const [before, after] = [a, b].map((words) => words.map((word) => ({ word, isKept: false })));
    for (let i = 0, j = 0; i < a.length && j < b.length;) {
      if (a[i] === b[j]) before[i++].isKept = after[j++].isKept = true;
      else if (length[i + 1][j] >= length[i][j + 1]) i += 1;
      else j += 1;
    }
    return { before, after };
  };

  const summary = (before, after) => {
    const count = (words) => words.filter(({ isKept }) => !isKept).length;
    const [lost, added] = [count(before), count(after)];
    if (!lost && !added) return "The translation stays the same.";
    return `${lost} of ${before.length} ${before.length === 1 ? "word" : "words"} lost, ${added} new.`;
  };
  // Changed words are marked; neighbours share a mark.
  const marked = (words) => {
    const shown = [];
    for (const { word, isKept } of words) {
      const last = shown[shown.length - 1];
      if (last && last.isKept === isKept) last.words.push(word);
      else shown.push({ isKept, words: [word] });
    }
    return shown.flatMap(({ isKept, words }, i) => {
      const text = words.join(" ");
      return [i ? " " : "", isKept ? text : make("mark", {}, text)];
    });
  };

  // Its controls, for the models that follow each other in the page: `fit` one before anything else.
  const view = (onChange) => {
    let config;
    const choices = ["kind", "layer", "head"].map((name) => part(`without-${name}`));
    const numbers = (n) => Array.from({ length: n }, (_, i) => [i, i + 1]);
    const fit = (newConfig) => {
      config = newConfig;
      const options = [
        KINDS,
        [["", "all layers"], ...numbers(config.N)],
        [["", "all heads"], ...numbers(config.h)],
      ];
      choices.forEach((choice, i) => {
        choice.replaceChildren(
          ...options[i].map(([value, textContent]) => make("option", { value, textContent })),
        );
      });
      choose("cross", config.N - 1, "");
      part("without-positions").disabled = config.positions === "none";
    };
    const choose = (...values) => {
      choices.forEach((choice, i) => {
        choice.value = values[i];
      });
      part("without-positions").checked = choices[1].disabled = choices[2].disabled = false;
    };
    const change = () => {
      const [kind, layer, head] = choices.map(({ value }) => value);
      return {
        without: headsOf({ kind, layer, head }, config),
        positions: !part("without-positions").checked,
      };
    };
    const update = () => {
      for (const choice of choices.slice(1)) choice.disabled = !choices[0].value;
      onChange();
    };
    for (const choice of [...choices, part("without-positions")])
      choice.addEventListener("change", update);
    const line = (words, { score }) => [
      ...marked(words),
      " ",
      make("span", { className: "number" }, `(${signed(score, 3)})`),
    ];
    return {
      fit,
      choose,
      change,
      // The best hypotheses of the whole model and of what is left of it.
      show: (whole, left) => {
        const { before, after } = compare(whole.text, left.text);
        part("whole").replaceChildren(...line(before, whole));
        part("left").replaceChildren(...line(after, left));
        part("without-said").textContent = summary(before, after);
      },
      clear: () => {
        for (const id of ["whole", "left", "without-said"]) part(id).textContent = "";
      },
      spoken: () => `${part("without-said").textContent} ${part("left").textContent}`,
    };
  };
  return { headsOf, compare, view };
})();
