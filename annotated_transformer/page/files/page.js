// The page: asks the engine for the translation of what is typed, and shows what it answers.
(() => {
  const LONGEST_LOOK = 120;  // tokens of both sides: with more, only the translation is shown
  const LONGEST_SOURCE = 512;  // tokens: of a longer text the first ones are translated
  const PATIENCE = 300;  // milliseconds without an answer, after which the page says that it works
  // Light or dark, as the reader's device is.
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const setTheme = () => { document.documentElement.dataset.theme = darkness.matches ? "dark" : "light"; };
  if (!inBook.theme) darkness.addEventListener("change", setTheme);
  setTheme();
  if (inBook.theme) document.documentElement.dataset.theme = inBook.theme;

  // The engine, in a worker that is made from its own text; where there can be none, in the page,
  // which then answers what the worker has left unanswered.
  const waiting = new Map();
  const receive = (answer) => {
    if (!waiting.has(answer.id)) return;  // answered before
    const { resolve, reject } = waiting.get(answer.id);
    waiting.delete(answer.id);
    if (answer.error) reject(new Error(answer.error));
    else resolve(answer);
  };
  let load;  // an engine that starts later needs the model's files, too
  const send = startEngine(receive, () => [load, ...[...waiting.values()].map(({ request }) => request)
    .filter((request) => request !== load)]);
  let nAsked = 0;
  const ask = (request) => new Promise((resolve, reject) => {
    nAsked += 1;
    const numbered = { ...request, id: nAsked };
    if (request.ask === "load") load = numbered;
    waiting.set(nAsked, { request: numbered, resolve, reject });
    send(numbered);
  });

  // What the explorer shows stays chosen from one sentence to the next.
  const chosen = () => {
    const root = part("explorer").firstElementChild;
    const place = (field, start) => {
      const inputs = root ? [...root.querySelectorAll(`.ax-${field}s input`)] : [];
      return inputs.length ? inputs.findIndex((input) => input.checked) : start;
    };
    return { kind: place("kind", 0), layer: place("layer", pageModel.config.N - 1), head: place("head", 0) };
  };
  const explore = ({ attention, next }, source, target) => {
    const { kind, ...first } = chosen(), read = ["<s>", ...target], told = [...target, "</s>"];
    const maps = [
      { name: "Encoder-decoder attention", queries: read, keys: source, predicts: told },
      { name: "Encoder self-attention", queries: source, keys: source, predicts: [] },
      { name: "Decoder self-attention", queries: read, keys: read, predicts: told },
    ];
    const data = { ...first, query: 0, maps, weights: [attention.cross, attention.encoder, attention.decoder] };
    const skeleton = '<table class="ax-matrix"><caption></caption><thead><tr></tr></thead><tbody></tbody></table>';
    const filled = { title: "", table: skeleton, data: JSON.stringify(data).replaceAll("<", "\\u003c") };
    const holder = make("div");
    holder.innerHTML = explorerTemplate.replace(/\{\{(\w+)\}\}/g, (_, name) => filled[name]);
    const root = holder.firstElementChild;
    part("explorer").replaceChildren(root);
    startExplorers();
    if (kind > 0) root.querySelectorAll(".ax-kinds input")[kind].click();
  };

  // Pictures of a long text would fill the memory and tell the eye nothing.
  const canLook = ({ hypotheses, source }) => hypotheses.length > 0 && source.length > 0 && source.length + hypotheses[0].tokens.length <= LONGEST_LOOK;
  const percent = (p) => `${(100 * p).toFixed(1)} %`;
  const number = (text) => make("span", { className: "number" }, text);
  const tree = beamTree.view();
  const setBusy = (isBusy, ...ids) => { for (const id of ids) part(id).setAttribute("aria-busy", isBusy); };
  let cut = "", complete = null;  // complete: the request whose answers are all shown, and what was found
  const showFound = ({ hypotheses, milliseconds, source, nTokens, steps }) => {
    const best = hypotheses[0];
    part("translation").textContent = best ? best.text : "";
    part("details").hidden = !best;
    part("seen").hidden = !canLook({ hypotheses, source });
    cut = best && nTokens > source.length ? ` The text is cut: ${source.length - 1} of its ${nTokens - 1} tokens are translated.` : "";
    part("said").textContent = best && !source.length ? "There is no word to translate." : best
      ? `${source.length} tokens in, ${best.tokens.length + 1} out, in ${milliseconds.toFixed(0)} ms.${cut}` : "";
    part("hypotheses").replaceChildren(...hypotheses.map(({ text, score }) =>
      make("li", { dir: "auto" }, `${text} `, number(`(${signed(score, 3)})`))));
    if (!part("seen").hidden) tree.show(steps);
    knocked.clear();
    part("greedy").textContent = "";
    setBusy(true, "tokens", "explorer");
  };
  const showSeen = (seen, { hypotheses, sourcePieces }) => {
    part("tokens").tBodies[0].replaceChildren(...seen.next.map(({ id, piece, p, runners }) => {
      const others = runners.filter((one) => one.id !== id).slice(0, 4)
        .map((one) => make("li", {}, `${one.piece} `, number(percent(one.p))));
      return make("tr", {},
        make("th", { scope: "row" }, make("span", { className: "token" }, piece)),
        make("td", { className: "number" }, percent(p)), make("td", {}, make("ul", {}, ...others)));
    }));
    explore(seen, sourcePieces, hypotheses[0].pieces);
    setBusy(false, "tokens", "explorer");
  };

  // Greedy search is a beam of one.
  const showGreedy = async (request, { hypotheses: [best] }) => {
    if (request.beamSize === 1) return;
    const found = await ask({ ...request, beamSize: 1 });
    if (wanted) return;
    const [greedy] = found.hypotheses;
    const isSame = greedy.tokens.join() === best.tokens.join();
    part("greedy").replaceChildren("Greedy search finds ",
      ...(isSame ? ["the same."] : [greedy.text, " ", number(`(${signed(greedy.score, 3)})`)]));
  };
  // What is left of the model answers the same question.
  const showLeft = async (request, found) => {
    const left = await ask({ ...request, ...knocked.change(), nBest: 1 });
    if (!wanted) knocked.show(found.hypotheses[0], left.hypotheses[0]);
  };

  // One question at a time; of what is typed meanwhile only the last is asked.
  let wanted = null, isBusy = false, isAboutLeft = false, knocked, pause;
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
    const found = await search(request);
    if (found.isStopped) return;
    showFound(found);
    if (wanted || !canLook(found)) return;
    await showGreedy(request, found);
    if (wanted) return;
    const seen = await ask({ ask: "look", source: found.source, target: found.hypotheses[0].tokens });
    if (wanted) return;
    showSeen(seen, found);
    complete = { request, found };
    await showLeft(request, found);
  };
  const complain = (error) => {
    complete = null;
    part("said").textContent = `This did not work: ${error.message}`;
    part("translation").textContent = "";
    part("details").hidden = true;
  };
  const update = async () => {
    const [beamSize, alpha] = [Number(part("beam").value), Number(part("alpha").value)];
    part("beam-value").textContent = beamSize;
    part("alpha-value").textContent = alpha.toFixed(1);
    wanted = { ask: "translate", text: part("text").value.replaceAll("\n", " "), beamSize, alpha, longest: LONGEST_SOURCE };
    part("copy").textContent = "Copy link";
    clearTimeout(pause);
    if (isBusy) return send({ ask: "stop" });
    isBusy = true;
    while (wanted) {
      const request = wanted;
      wanted = null;
      await answer(request).catch(complain);
    }
    isBusy = false;
    pause = setTimeout(() => {  // a screen reader hears the translation when the typing rests
      part("spoken").textContent = part("details").hidden ? part("said").textContent
        : isAboutLeft ? knocked.spoken() : part("translation").textContent + cut;
      isAboutLeft = false;
      inBook.write();
    }, 1000);
  };

  const begin = async () => {
    const { config, n_parameters, corpus, example, book, ...files } = pageModel;
    const [, from, to] = corpus.match(/-([a-z]{2})-([a-z]{2})(?![a-z])/) || ["", "", ""];
    part("text").lang = from;
    for (const id of ["translation", "hypotheses", "whole", "left"]) part(id).lang = to;
    part("tokens").tBodies[0].lang = to;
    linkChapters(book);
    const million = (n_parameters / 1e6).toFixed(1);
    part("about").textContent = `A Transformer of ${million} million parameters, ${config.N} layers of ${config.h} heads, runs here, on your device: what you type is sent nowhere.`;
    const { isWasm } = await ask({ ask: "load", files: { config, ...files }, useWasm: true });
    document.documentElement.dataset.engine = isWasm ? "WebAssembly" : "JavaScript";
    if (!part("text").value) part("text").value = example;
    knocked = knockOut.view(config, () => {
      isAboutLeft = true;
      update();
    });
    for (const id of ["text", "beam", "alpha"]) part(id).addEventListener("input", update);
    addEventListener("hashchange", () => {
      inBook.read();
      update();
    });
    part("copy").hidden = !navigator.clipboard;
    part("copy").addEventListener("click", async () => {
      inBook.write();
      await navigator.clipboard.writeText(location.href);
      part("spoken").textContent = part("copy").textContent = "Link copied";
    });
    part("form").addEventListener("submit", (event) => event.preventDefault());
    await update();
    document.documentElement.dataset.ready = "";
  };
  begin().catch((error) => {
    part("said").textContent = part("spoken").textContent = `The model did not load: ${error.message}`;
  });
})();
