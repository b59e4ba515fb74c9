// What the page says of its doubts: lines under the translation, marks in it, and all of it as the text of a report.
const honest = (() => {
  const percent = (p) => `${Math.round(100 * p)} %`;
  const nameOf = (language) =>
    language ? new Intl.DisplayNames("en", { type: "language" }).of(language) : "its language";
  const isUnsure = ({ meanP }, { unsure_below }) => meanP < (unsure_below || 0);

  const strangeLine = (strange, { languages, doubt, canSwap }) => {
    const [from, to] = languages.map(nameOf);
    return {
      script: `The model reads ${from}: of this script it knows hardly a letter.`,
      target: `This looks like ${to}, and the model translates from ${from}.${canSwap ? " Swap the languages, and it can try." : ""}`,
      words: `None of the commonest words of ${from} is here. Another language than ${from} the model cannot know.`,
      long: `Of 1,000 sentences that the model was trained on, one has more than ${doubt.longest} words, as this has: try it in parts.`,
    }[strange];
  };
  const marks = (words) =>
    words.flatMap((word, i) => [i ? ", " : "", make("mark", { className: "doubt" }, word)]);
  const lines = ({ strange, hypotheses: [best], byScore }, model) => {
    const found = [];
    if (strange) found.push([strangeLine(strange, model)]);
    if (isUnsure(best, model.doubt)) {
      found.push([
        `The model is unsure: the mean probability of its tokens is ${percent(best.meanP)}, and below ` +
          `${percent(model.doubt.unsure_below)} it is often wrong. `,
        make("mark", { className: "doubt" }, "Improbable tokens"),
        " are marked.",
      ]);
    }
    if (best.lost.length) {
      found.push(["Not in the translation: ", ...marks(best.lost), "."]);
    }
    if (byScore) {
      const lost = byScore.lost.filter((word) => !best.lost.includes(word));
      found.push([
        `A wider beam has this. By score alone it would be “${byScore.text}”, which has lost `,
        ...marks(lost),
        ".",
      ]);
    }
    return found;
  };
  // The translation; where the model is unsure, with its improbable tokens marked.
  const marked = (best, { doubt }) =>
    !isUnsure(best, doubt)
      ? [best.text]
      : best.parts.map(({ text, p }) =>
          p < doubt.unsure_below && text.trim()
            ? make("mark", { className: "doubt", title: `probability ${percent(p)}` }, text)
            : text,
        );

  const report = (
    { text, beamSize, alpha },
    { hypotheses: [best] },
    { languages, doubt, name, n_parameters, version },
  ) => {
    // In Markdown, a fence that is longer than any row of such marks shows what is inside as it is: no picture, no @name.
    const fenced = (...lines) => {
      const oneLine = lines.map((line) => line.replaceAll("\n", " "));
      const fence = "`".repeat(
        1 + Math.max(2, ...(oneLine.join().match(/`+/g) || []).map((marks) => marks.length)),
      );
      return [fence, ...oneLine, fence].join("\n");
    };
    const named = (word, language) => `${word}${language ? ` (${language})` : ""}:`;
    const facts = fenced(
      `mean probability of the tokens ${best.meanP.toFixed(3)}, unsure below ${doubt.unsure_below || 0}; lost: ${best.lost.join(", ") || "nothing"}`,
      `beam width ${beamSize}, length penalty ${alpha}, score ${best.score.toFixed(3)}`,
      `model ${name || "without a name"}, ${n_parameters} parameters; annotated_transformer ${version}`,
      `${document.documentElement.dataset.engine} in ${navigator.userAgent}`,
    );
    return [
      named("Text", languages[0]),
      fenced(text),
      named("Translation", languages[1]),
      fenced(best.text),
      "What is wrong with it:",
      "",
      facts,
    ].join("\n\n");
  };
  return { lines, marked, report, nameOf };
})();
