// The page: asks the engine for the translation of what is typed, and shows what it answers.
(() => {
  const LONGEST_LOOK = 120; // tokens of both sides: with more, only the translation is shown
  const LONGEST_SOURCE = 512; // tokens: of a longer text the first ones are translated
  const PATIENCE = 300; // milliseconds without an answer, after which the page says that it works
  // Light or dark, as the reader's device is.
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const setTheme = () => {
    document.documentElement.dataset.theme = darkness.matches ? "dark" : "light";
  };
  if (!inBook.theme) darkness.addEventListener("change", setTheme);
  setTheme();
  if (inBook.theme) document.documentElement.dataset.theme = inBook.theme;

  // The engine, in a worker that is made from its own text; where there can be none, in the page,
  // which then answers what the worker has left unanswered.
  const waiting = new Map();
  const receive = (answer) => {
    if (!waiting.has(answer.id)) return; // answered before
    const { request, resolve, reject } = waiting.get(answer.id);
    if ("progress" in answer) return request.onProgress(answer.progress);
    waiting.delete(answer.id);
    if (answer.error) reject(new Error(answer.error));
    else resolve(answer);
  };
  let load; // an engine that starts later needs the model's files, too
  const send = startEngine(receive, () => [
    load,
    ...[...waiting.values()].map(({ request }) => request).filter((request) => request !== load),
  ]);
  let nAsked = 0;
  const ask = (request, onProgress) =>
    new Promise((resolve, reject) => {
      nAsked += 1;
      const numbered = { ...request, id: nAsked };
      if (request.ask === "load") load = numbered;
      waiting.set(nAsked, { request: { ...numbered, onProgress }, resolve, reject });
      send(numbered);
    });

  // What the page knows of the model that the engine has: config, n_parameters, name, languages, canSwap, doubt;
  // `languages` are turned round, and `isBack` is true, after a swap.
  let model = null,
    sought = null; // sought: the beginnings of a predicted piece and of one that it should look at
  // What the explorer shows stays chosen from one sentence to the next.
  const chosen = (predicted, source, layers) => {
    const root = part("explorer").firstElementChild;
    const place = (field, start) => {
      const inputs = root ? [...root.querySelectorAll(`.ax-${field}s input`)] : [];
      return inputs.length ? inputs.findIndex((input) => input.checked) : start;
    };
    if (sought) {
      const { query: start, key } = sought,
        query = predicted.findIndex((piece) => piece.startsWith(start)),
        layer = layers.length - 1;
      sought = null;
      const weightOf = (head) =>
        source.reduce(
          (most, piece, j) => (piece.startsWith(key) ? Math.max(most, head[query][j]) : most),
          0,
        );
      const weights = query < 0 ? [] : layers[layer].map(weightOf);
      if (query >= 0) return { kind: 0, layer, head: weights.indexOf(Math.max(...weights)), query };
    }
    return {
      kind: place("kind", 0),
      layer: place("layer", model.config.N - 1),
      head: place("head", 0),
      query: 0,
    };
  };
  const explore = ({ attention, next }, source, target) => {
    const read = ["<s>", ...target],
      told = [...target, "</s>"],
      { kind, ...first } = chosen(told, source, attention.cross);
    const maps = [
      { name: "Encoder-decoder attention", queries: read, keys: source, predicts: told },
      { name: "Encoder self-attention", queries: source, keys: source, predicts: [] },
      { name: "Decoder self-attention", queries: read, keys: read, predicts: told },
    ];
    const data = {
      ...first,
      maps,
      weights: [attention.cross, attention.encoder, attention.decoder],
    };
    const skeleton =
      '<table class="ax-matrix"><caption></caption><thead><tr></tr></thead><tbody></tbody></table>';
    const filled = {
      title: "",
      table: skeleton,
      data: JSON.stringify(data).replaceAll("<", "\\u003c"),
    };
    const holder = make("div");
    holder.innerHTML = explorerTemplate.replace(/\{\{(\w+)\}\}/g, (_, name) => filled[name]);
    const root = holder.firstElementChild;
    part("explorer").replaceChildren(root);
    startExplorers();
    if (kind > 0) root.querySelectorAll(".ax-kinds input")[kind].click();
  };

  // Pictures of a long text would fill the memory and tell the eye nothing.
  const canLook = ({ hypotheses, source }) =>
    hypotheses.length > 0 && source.length + hypotheses[0].tokens.length <= LONGEST_LOOK;
  const percent = (p) => `${(100 * p).toFixed(1)} %`;
  const number = (text) => make("span", { className: "number" }, text);
  const tree = beamTree.view();
  const setBusy = (isBusy, ...ids) => {
    for (const id of ids) part(id).setAttribute("aria-busy", isBusy);
  };
  const main = document.querySelector("main");
  const setShown = (isFound, isSeen) => {
    main.toggleAttribute("data-found", isFound);
    main.toggleAttribute("data-seen", isSeen);
    part("report").hidden = part("copy").hidden || !isFound;
  };
  let cut = "",
    complete = null,
    last = null; // complete: the request whose answers are all shown, and what was found
  const showFound = (request, found) => {
    const { hypotheses, milliseconds, source, nTokens, steps } = found,
      best = hypotheses[0];
    last = best ? { request, found } : null;
    part("translation").replaceChildren(...(best ? honest.marked(best, model) : []));
    part("doubt").replaceChildren(
      ...(best ? honest.lines(found, model).map((line) => make("p", {}, ...line)) : []),
    );
    setShown(Boolean(best), canLook(found));
    cut =
      best && nTokens > source.length
        ? ` The text is cut: ${source.length - 1} of its ${nTokens - 1} tokens are translated.`
        : "";
    part("said").textContent = best
      ? `${source.length} tokens in, ${best.tokens.length + 1} out, in ${milliseconds.toFixed(0)} ms.${cut}`
      : "";
    part("hypotheses").replaceChildren(
      ...hypotheses.map(({ text, score }) =>
        make("li", { dir: "auto" }, `${text} `, number(`(${signed(score, 3)})`)),
      ),
    );
    if (canLook(found)) tree.show(steps);
    knocked.clear();
    part("greedy").textContent = "";
    setBusy(true, "tokens", "explorer");
  };
  const showSeen = (seen, { hypotheses, sourcePieces }) => {
    part("tokens").tBodies[0].replaceChildren(
      ...seen.next.map(({ id, piece, p, runners }) => {
        const others = runners
          .filter((one) => one.id !== id)
          .slice(0, 3)
          .map((one) => make("li", {}, `${one.piece} `, number(percent(one.p))));
        return make(
          "tr",
          {},
          make("th", { scope: "row" }, make("span", { className: "token" }, piece)),
          make("td", { className: "number" }, percent(p)),
          make("td", {}, make("ul", {}, ...others)),
        );
      }),
    );
    explore(seen, sourcePieces, hypotheses[0].pieces);
    setBusy(false, "tokens", "explorer");
  };
  // A line without a letter comes back as it is.
  const showAsItIs = (text) => {
    last = null;
    part("translation").textContent = text;
    part("doubt").replaceChildren();
    part("said").textContent = text && "There is no letter in it: it stays as it is.";
    cut = "";
    setShown(false, false);
  };

  // Greedy search is a beam of one.
  const showGreedy = async (request, { hypotheses: [best] }) => {
    if (request.beamSize === 1) return;
    const found = await ask({ ...request, beamSize: 1 });
    if (wanted) return;
    const [greedy] = found.hypotheses;
    const isSame = greedy.tokens.join() === best.tokens.join();
    part("greedy").replaceChildren(
      "Greedy search finds ",
      ...(isSame ? ["the same."] : [greedy.text, " ", number(`(${signed(greedy.score, 3)})`)]),
    );
  };
  // What is left of the model answers the same question.
  const showLeft = async (request, found) => {
    const left = await ask({ ...request, ...knocked.change(), nBest: 1 });
    if (!wanted) knocked.show(found.hypotheses[0], left.hypotheses[0]);
  };

  // One question at a time; of what is typed meanwhile only the last is asked.
  let wanted = null,
    working = null,
    isAboutLeft = false,
    knocked,
    pause;
  const search = async (request) => {
    const late = setTimeout(() => {
      part("said").textContent = "Translating\u2026";
      setBusy(true, "translation");
    }, PATIENCE);
    try {
      return await ask(request);
    } finally {
      clearTimeout(late);
      setBusy(false, "translation");
    }
  };
  const answer = async (request) => {
    if (complete && JSON.stringify(request) === JSON.stringify(complete.request)) {
      return showLeft(request, complete.found);
    }
    complete = null;
    if (!/\p{L}/u.test(request.text)) return showAsItIs(request.text.trim());
    const found = await search(request);
    if (found.isStopped) return;
    showFound(request, found);
    if (wanted || !canLook(found)) return;
    await showGreedy(request, found);
    if (wanted) return;
    const seen = await ask({
      ask: "look",
      source: found.source,
      target: found.hypotheses[0].tokens,
    });
    if (wanted) return;
    showSeen(seen, found);
    complete = { request, found };
    await showLeft(request, found);
  };
  const complain = (error) => {
    complete = null;
    showAsItIs("");
    part("said").textContent = `This did not work: ${error.message}`;
  };
  const update = () => {
    const [beamSize, alpha] = [Number(part("beam").value), Number(part("alpha").value)];
    part("beam-value").textContent = beamSize;
    part("alpha-value").textContent = alpha.toFixed(1);
    wanted = {
      ask: "translate",
      text: part("text").value.replaceAll("\n", " "),
      beamSize,
      alpha,
      back: model.isBack,
      longest: LONGEST_SOURCE,
    };
    [part("copy").textContent, part("report").textContent] = [
      "Copy link",
      "Copy as a report of a fault",
    ];
    clearTimeout(pause);
    if (working) send({ ask: "stop" });
    else working = work();
    return working;
  };
  const work = async () => {
    while (wanted) {
      const request = wanted;
      wanted = null;
      await answer(request).catch(complain);
    }
    working = null;
    pause = setTimeout(() => {
      // a screen reader hears the translation when the typing rests
      part("spoken").textContent = !last
        ? part("said").textContent
        : isAboutLeft
          ? knocked.spoken()
          : [part("translation").textContent + cut, part("doubt").textContent].join(" ").trim();
      isAboutLeft = false;
      inBook.write();
    }, 1000);
  };

  // Three things to try.
  const attempt = async ({ text, seek, says, isHead }) => {
    part("text").value = text;
    [part("beam").value, part("alpha").value] = [4, 0.6];
    sought = seek || null;
    part("try-said").textContent = says || "";
    complete = null;
    await update();
    if (!isHead || !complete) return;
    const { request, found } = complete,
      tell = (line) => {
        if (!wanted) part("try-said").textContent = line;
      };
    const askWithout = async (head) =>
      wanted ? null : (await ask({ ...request, without: [head], nBest: 1 })).hypotheses?.[0];
    working = tries
      .tellingHead(model.config, found.hypotheses[0].text, askWithout, tell)
      .catch(() => null); // who types waits
    const head = await working;
    working = null;
    tell(head ? tries.saysOfHead(head, model.config) : "No head is missed in this sentence.");
    if (head && !wanted) knocked.choose("cross", head.layer, head.head);
    isAboutLeft = !wanted;
    await update();
  };

  // Let the page know the model that the engine has.
  const fit = (facts) => {
    model = { doubt: {}, name: "", isBack: false, version: pageModel.version, ...facts };
    const { config, n_parameters, languages } = model;
    document.documentElement.dataset.engine = model.isWasm ? "WebAssembly" : "JavaScript";
    part("about").textContent =
      `${model.name ? `${model.name}: a` : "A"} Transformer of ${(n_parameters / 1e6).toFixed(1)} million parameters, ${config.N} layers of ${config.h} heads, runs here, on your device: what you type is sent nowhere.`;
    knocked.fit(config);
    part("explorer").replaceChildren();
    direct(languages);
  };
  const direct = (languages) => {
    const [from, to] = (model.languages = languages);
    part("text").lang = from;
    for (const id of ["translation", "hypotheses", "whole", "left"]) part(id).lang = to;
    part("tokens").tBodies[0].lang = to;
    part("direction").hidden = !model.canSwap;
    part("direction-said").textContent = `${honest.nameOf(from)} to ${honest.nameOf(to)}`;
    const things = tries.of(languages),
      [buttons] = part("tries").getElementsByTagName("p");
    part("tries").hidden = !things.length;
    part("try-said").textContent = "";
    buttons.replaceChildren(
      ...things.map((one) => {
        const button = make("button", { type: "button" }, one.name);
        button.addEventListener("click", () => attempt(one));
        return button;
      }),
    );
  };
  const copied = async (button, text) => {
    await navigator.clipboard.writeText(text);
    part("spoken").textContent = button.textContent =
      button === part("copy") ? "Link copied" : "Report copied";
  };

  const begin = async () => {
    const { book, example, corpus, n_parameters, ...files } = pageModel;
    linkChapters(book);
    const { isWasm, canSwap } = await ask({ ask: "load", files, useWasm: true });
    if (!part("text").value) part("text").value = example;
    knocked = knockOut.view(() => {
      isAboutLeft = true;
      update();
    });
    fit({ ...files, isWasm, canSwap, n_parameters });
    for (const id of ["text", "beam", "alpha"]) part(id).addEventListener("input", update);
    addEventListener("hashchange", () => {
      inBook.read();
      update();
    });
    part("copy").hidden = !navigator.clipboard;
    part("copy").addEventListener("click", () => {
      inBook.write();
      copied(part("copy"), location.href);
    });
    part("report").addEventListener("click", () => {
      if (last)
        copied(
          part("report"),
          honest.report(last.request, last.found, { ...model, name: model.name || corpus }),
        );
    });
    part("swap").addEventListener("click", () => {
      const found = part("translation").textContent;
      model.isBack = !model.isBack;
      direct([...model.languages].reverse());
      if (last && found) part("text").value = found;
      complete = null;
      update();
    });
    ownModel.listen(ask, async (facts) => {
      complete = null;
      fit(facts);
      await update();
    });
    part("form").addEventListener("submit", (event) => event.preventDefault());
    await update();
    document.documentElement.dataset.ready = "";
  };
  begin().catch((error) => {
    part("said").textContent = part("spoken").textContent =
      `The model did not load: ${error.message}`;
  });
})();
