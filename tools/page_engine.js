// Runs the engine of an exported page in Node: node page_engine.js FOLDER [plain] < jobs > answers.
// A job is a line of JSON, {do, ...}, and so is its answer. "plain" is the path without WebAssembly.
const fs = require("fs"),
  path = require("path"),
  vm = require("vm");
const [folder, way] = process.argv.slice(2);
for (const name of ["engine.js", "model.js", "parts.js", "tree.js", "knock_out.js"]) {
  vm.runInThisContext(fs.readFileSync(path.join(folder, name), "utf8"), { filename: name });
}
const engine = makeEngine();

const answer = async (translator) => {
  let { model, tokenizer } = translator;
  const jobs = {
    // A checkpoint that is dropped on the page, from here on in place of its own model; or why it is refused.
    open: async ({ folder: dropped }) => {
      const files = fs
        .readdirSync(dropped)
        .map((name) => new File([fs.readFileSync(path.join(dropped, name))], name));
      const shares = [],
        bytes = Uint8Array.from(Buffer.from(pageModel.kernels, "base64"));
      try {
        const opened = await engine.openFolder(
          files,
          path.basename(dropped),
          bytes,
          way !== "plain",
          (share) => shares.push(share),
        );
        ({ model, tokenizer } = translator = opened.translator);
        return { ...opened.facts, shares, backId: tokenizer.backId };
      } catch (error) {
        return { refused: error.message, kind: error.constructor.name };
      }
    },
    tensor: ({ name }) => [...model.tensors[name].values],
    parts: (found) => translator.parts(found),
    strange: ({ texts }) =>
      texts.map((text) =>
        engine.strangeness(text, tokenizer, {
          ...translator.doubt,
          translated: translator.translated[0],
        }),
      ),
    lost: ({ pairs, to, translated, language }) =>
      pairs.map((pair) =>
        engine.lostWords(...pair, to, new engine.TranslatedWords(translated, language)),
      ),
    way: () => model.matrices.isWasm,
    encode: ({ texts }) => texts.map((text) => tokenizer.encode(text)),
    asRead: ({ texts }) => texts.map(engine.asRead),
    decode: ({ lists }) => lists.map((ids) => tokenizer.decode(ids)),
    greedy: ({ sources, maxExtra }) =>
      sources.map((source) => engine.greedySearch(model, source, maxExtra)),
    beam: ({ sources, settings }) =>
      sources.map((source) => engine.beamSearch(model, source, settings)),
    logits: ({ source, target, change }) => {
      model.change = { positions: change.positions, without: new Set(change.without) };
      const state = model.start(source);
      return target.map((token) => [...model.step([token], state)[0]]);
    },
    look: (request) => translator.look(request),
    translate: ({ texts, settings }) =>
      texts.map((text) => translator.translate({ text, ...settings })),
    tree: ({ steps }) => beamTree.nodesOf(steps),
    headsOf: ({ choice, config }) => knockOut.headsOf(choice, config),
    compare: ({ pairs }) => pairs.map(([one, two]) => knockOut.compare(one, two)),
    activate: ({ name, x }) => x.map(engine.ACTIVATIONS[name]),
    linear: ({ name, x }) => [...model.linear(name, Float64Array.from(x))],
    // Of each text: milliseconds a token of greedy search, and for a translation with a beam. They are
    // the processor's, which a busy machine does not stretch as it does the clock's.
    time: ({ texts, beamSize }) => {
      for (const text of texts.slice(0, 3)) translator.translate({ text, beamSize }); // to warm up
      const timed = (run) => {
        const began = process.cpuUsage(),
          count = run(),
          { user, system } = process.cpuUsage(began);
        return (user + system) / 1000 / count;
      };
      const perToken = texts.map((text) =>
        timed(() => engine.greedySearch(model, translator.source(text)).length + 1),
      );
      return {
        perToken,
        sentences: texts.map((text) => timed(() => translator.translate({ text, beamSize }) && 1)),
      };
    },
  };
  // What a page hears that asks for a translation and at once for an end of it. The clock goes on by so
  // many milliseconds each time that it is looked at, so that no busy machine makes a search long.
  jobs.stop = ({ text, tick }) =>
    new Promise((resolve) => {
      let time = 0;
      performance.now = () => (time += tick);
      const tell = engine.serve((told) =>
        told.id === 1
          ? tell({ id: 2, ask: "translate", text }) && tell({ ask: "stop" })
          : told.id === 2 && resolve(Object.keys(told)),
      );
      tell({ id: 1, ask: "load", files: pageModel, useWasm: way !== "plain" });
    });
  for (const line of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
    const job = JSON.parse(line);
    process.stdout.write(JSON.stringify(await jobs[job.do](job)) + "\n");
  }
};
engine.Translator.load(pageModel, way !== "plain").then(answer);
