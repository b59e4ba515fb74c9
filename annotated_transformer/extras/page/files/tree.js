// The beam as a tree that grows: a row for each step of the search, best beginning first.
const beamTree = (() => {
  const [WIDTH, HEIGHT, GAP_X, GAP_Y, EDGE] = [76, 32, 8, 14, 2]; // of a box, and between boxes
  const LONGEST = 10; // characters of a token in a box

  // The boxes of `steps` (see `beamSearch`), root first: { step, place, parent, piece, logP, score,
  // ends, rank, wins, goesOn }. `parent` is a place in this list; `rank` counts finished hypotheses
  // from the best, 1, and is 0 for others; `wins` is the path to the best.
  const nodesOf = (steps) => {
    const nodes = [
      {
        step: 0,
        place: 0,
        parent: -1,
        piece: "<s>",
        logP: 0,
        ends: false,
        rank: 0,
        wins: false,
        goesOn: false,
      },
    ];
    let alive = [0];
    steps.forEach((step, i) => {
      const next = [];
      step.forEach((one, place) => {
        const parent = alive[one.parent];
        nodes[parent].goesOn = true;
        if (!one.ends) next.push(nodes.length);
        nodes.push({ ...one, step: i + 1, place, parent, rank: 0, wins: false, goesOn: false });
      });
      alive = next;
    });
    const ended = nodes.filter(({ ends }) => ends).sort((one, two) => two.score - one.score);
    ended.forEach((node, i) => {
      node.rank = i + 1;
    });
    for (let node = ended[0]; node; node = nodes[node.parent]) node.wins = true;
    return nodes;
  };

  // The text from the root to a node, as its pieces spell it.
  const beginning = (nodes, node) => {
    const pieces = [];
    for (let one = node; one.parent >= 0; one = nodes[one.parent]) pieces.unshift(one.piece);
    return pieces
      .filter((piece) => piece !== "</s>")
      .join("")
      .replaceAll("\u2581", " ")
      .trim();
  };
  const inWords = (nodes, node) => {
    const text = `\u201c${beginning(nodes, node)}\u201d`;
    if (node.ends)
      return `${text} is finished, score ${signed(node.score, 3)}, number ${node.rank}`;
    return `${text} ${signed(node.logP, 2)}${node.goesOn ? "" : ", given up"}`;
  };

  const left = ({ place }) => EDGE + place * (WIDTH + GAP_X);
  const top = ({ step }) => EDGE + step * (HEIGHT + GAP_Y);
  const classOf = ({ wins, ends, goesOn }) =>
    [wins && "wins", ends && "ends", !ends && !goesOn && "given-up"].filter(Boolean).join(" ");
  const box = (node) => {
    const letters = [...node.piece],
      x = left(node),
      y = top(node);
    const short =
      letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}\u2026` : node.piece;
    const value = node.ends ? `${node.rank}. ${signed(node.score, 3)}` : signed(node.logP, 2);
    return makeSvg(
      "g",
      { class: classOf(node) },
      makeSvg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 5 }),
      makeSvg(
        "svg",
        { x: x + 4, y, width: WIDTH - 8, height: HEIGHT }, // cuts what is too wide
        makeSvg("text", { x: 2, y: 14 }, short),
        makeSvg("text", { x: 2, y: 28, class: "value" }, node.step ? value : ""),
      ),
    );
  };
  const edge = (from, to) => {
    const [x, y, x_2, y_2] = [
      left(from) + WIDTH / 2,
      top(from) + HEIGHT,
      left(to) + WIDTH / 2,
      top(to),
    ];
    const middle = (y + y_2) / 2;
    return makeSvg("path", {
      class: classOf(to),
      d: `M${x} ${y}C${x} ${middle} ${x_2} ${middle} ${x_2} ${y_2}`,
    });
  };
  const picture = (nodes, nSteps) => {
    let last = 0;
    for (const { place } of nodes) last = Math.max(last, place);
    const [width, height] = [
      left({ place: last }) + WIDTH + EDGE,
      top({ step: nSteps }) + HEIGHT + EDGE,
    ];
    const rows = Array.from({ length: nSteps + 1 }, (_, step) => {
      const own = nodes.filter((node) => node.step === step);
      const edges = own.filter(({ step }) => step).map((node) => edge(nodes[node.parent], node));
      return makeSvg("g", { class: "step" }, ...edges, ...own.map(box));
    });
    const style = `max-width: ${width}px; min-width: ${0.9 * width}px`; // a little smaller where that spares a bar
    return makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, style, role: "img" }, ...rows);
  };

  // Its controls: a slider, and a button that plays the steps or, for who wants no motion, goes to
  // the next one.
  const view = () => {
    const stillness = matchMedia("(prefers-reduced-motion: reduce)"),
      slider = part("step");
    let nodes = [],
      nSteps = 0,
      timer = 0;
    const nameButton = () => {
      part("play").textContent = timer ? "Pause" : stillness.matches ? "Next step" : "Play";
    };
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      nameButton();
    };
    const set = (step, isFollowed = false) => {
      const count = (is) => nodes.filter((node) => node.step === step && is(node)).length;
      const kept = count(({ ends }) => !ends),
        finished = nodes.filter(({ rank, step: at }) => rank && at <= step).length;
      const said = `Step ${step} of ${nSteps}: ${kept} ${kept === 1 ? "beginning" : "beginnings"} kept, ${finished} finished`;
      slider.value = step;
      slider.setAttribute("aria-valuetext", said);
      part("step-value").textContent = said;
      const drawn = part("tree").firstElementChild;
      drawn.setAttribute("aria-label", `${said}. The steps in words stand below.`);
      [...drawn.children].forEach((row, i) => row.toggleAttribute("hidden", i > step));
      [...part("tree-steps").children].forEach((item, i) => {
        if (i + 1 === step) item.setAttribute("aria-current", "step");
        else item.removeAttribute("aria-current");
      });
      if (isFollowed) drawn.children[step].scrollIntoView({ block: "nearest", inline: "nearest" });
    };
    const advance = () => set((Number(slider.value) % nSteps) + 1, true);
    part("play").addEventListener("click", () => {
      if (timer) return stop();
      advance();
      if (stillness.matches || Number(slider.value) === nSteps) return;
      timer = setInterval(() => {
        advance();
        if (Number(slider.value) === nSteps) stop();
      }, 700);
      nameButton();
    });
    slider.addEventListener("input", () => {
      stop();
      set(Number(slider.value), true);
    });
    stillness.addEventListener("change", stop);
    nameButton();
    return {
      show: (steps) => {
        stop();
        [nodes, nSteps] = [nodesOf(steps), steps.length];
        slider.max = nSteps;
        part("tree").replaceChildren(picture(nodes, nSteps));
        part("tree-steps").replaceChildren(
          ...steps.map((_, i) =>
            make(
              "li",
              {},
              make(
                "ul",
                {},
                ...nodes
                  .filter(({ step }) => step === i + 1)
                  .map((node) => make("li", {}, inWords(nodes, node))),
              ),
            ),
          ),
        );
        set(nSteps);
      },
    };
  };
  return { nodesOf, view };
})();
