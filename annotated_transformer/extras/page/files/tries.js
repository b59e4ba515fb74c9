// Three things to try, each with a sentence that says what to look at.
const tries = (() => {
  const LEAVES = "The train leaves when the leaves fall.";
  const THINGS = {
    "en-de": [
      {
        name: "An ambiguous word",
        text: LEAVES,
        seek: { query: "\u2581Bl", key: "\u2581leav" },
        says:
          "“leaves” is a verb here, and then a noun: the same piece with the same vector. In Who looks where, point at the " +
          "queries that predict “fährt” and “Blätter”: each looks at its own “leaves”, which the encoder has told apart by its neighbours.",
      },
      {
        name: "A verb far away",
        text: "I know that my brother bought a new car yesterday.",
        seek: { query: "\u2581gekauft", key: "\u2581bought" },
        says:
          "In a German clause the verb comes last: “bought” is the sixth word, “gekauft” the last but one. In Who looks where, " +
          "the query that predicts it looks back over all that lies between.",
      },
      { name: "A head knocked out", text: LEAVES, isHead: true },
    ],
  };

  // Each head of the encoder-decoder attention is taken away alone: the one without which the fewest words change, if
  // any do, is the one whose work can be seen.
  const tellingHead = async ({ N, h }, whole, askWithout, tell) => {
    let best = null,
      nChanged = 0;
    for (let layer = 0; layer < N; layer++) {
      for (let head = 0; head < h; head++) {
        tell(`Head ${layer * h + head + 1} of ${N * h} is taken away.`);
        const left = await askWithout(`cross.${layer}.${head}`);
        if (!left) return null;
        const lost = knockOut
          .compare(whole, left.text)
          .before.filter(({ isKept }) => !isKept).length;
        nChanged += lost > 0;
        if (lost && !(best && best.lost <= lost)) best = { layer, head, lost };
      }
    }
    return best && { ...best, nChanged };
  };
  const saysOfHead = ({ layer, head, nChanged }, { N, h }) =>
    `Without head ${head + 1} of layer ${layer + 1} the translation changes: see Knock out. Of the ${N * h} heads of the ` +
    `encoder-decoder attention, each taken away alone, ${nChanged} ${nChanged === 1 ? "changes" : "change"} this translation.`;
  return { of: (languages) => THINGS[languages.join("-")] || [], tellingHead, saysOfHead };
})();
