// Text in, text out: what the page asks of the model, and what it is told.

// Python's white space, and what it takes for the end of a line.
const SPACES = /[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/g;
const WIDER = 4; // times, a beam where one has lost a number or a name
const LINE_END = "\\r\\n|[\\n-\\r\\x1c-\\x1e\\x85\\u2028\\u2029]";

// A line as the model gets it: one space between words, no half of a surrogate pair, and no shouting.
function asRead(text) {
  const whole = text.replace(/\p{Surrogate}/gu, "\ufffd");
  const line = whole.replace(SPACES, " ").replace(/^ | $/g, ""),
    [first = ""] = line;
  const isShouted =
    (line.match(/\p{L}/gu) || []).length >= 4 &&
    /\p{Uppercase}/u.test(line) &&
    !/[\p{Lowercase}\p{Lt}]/u.test(line);
  return isShouted ? first + line.slice(first.length).toLowerCase() : line;
}

// The bytes of a text in base 64.
function bytesOf(text) {
  const characters = atob(text),
    bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

// The same of bytes that were deflated (zlib).
async function inflated(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The tensors of a safetensors file: the length of a header, the header (JSON), the numbers.
function readTensors(bytes) {
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  delete header.__metadata__;
  const types = { I8: Int8Array, F32: Float32Array },
    tensors = {};
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [from, to],
    },
  ] of Object.entries(header)) {
    tensors[name] = {
      shape,
      values: new types[dtype](bytes.slice(8 + length + from, 8 + length + to).buffer),
    };
  }
  return tensors;
}

class Translator {
  // `files` is what model.js holds: config, languages, doubt, tokenizer, and in base 64 kernels, and rule and weights,
  // deflated.
  static async load(files, useWasm = true) {
    const tokenizer = new Tokenizer(files.tokenizer, await inflated(files.rule));
    return new Translator(
      files,
      tokenizer,
      readTensors(await inflated(files.weights)),
      bytesOf(files.kernels),
      useWasm,
    );
  }

  constructor({ config, languages, doubt }, tokenizer, tensors, kernels, useWasm) {
    Object.assign(this, { config, languages, doubt, tokenizer });
    const lists = [doubt.translated || ""].flat();
    this.translated = languages.map(
      (language, i) => new TranslatedWords((lists[i] || "").split(" ").filter(Boolean), language),
    );
    this.model = new Transformer(config, tensors, kernels, useWasm);
    this.maxSource = ["learned", "marian"].includes(config.positions)
      ? Math.min(1024, config.max_len)
      : 1024;
  }

  // The ids of a line of text, with the end of the sentence; an empty list if there is nothing to translate.
  source(text, back = false) {
    return this.cut(this.ids(text, back), this.maxSource);
  }

  // The ids of a line of text; none without a letter. `back` into the language of the sources.
  ids(text, back) {
    const read = asRead(text),
      ids = /\p{L}/u.test(read) ? this.tokenizer.encode(read) : [];
    return back && ids.length ? [this.tokenizer.backId, ...ids] : ids;
  }

  // The first ids and the end of the sentence, together at most `longest`.
  cut(ids, longest) {
    return ids.length
      ? [...ids.slice(0, Math.min(longest, this.maxSource) - 1), this.config.eos_id]
      : [];
  }

  // The text of ids on one line.
  text(ids) {
    const text = this.tokenizer.decode(ids).replace(new RegExp(`(${LINE_END})$`), "");
    return text.replace(new RegExp(LINE_END, "g"), " ");
  }

  // The text of a hypothesis in parts, each with the least probability of its tokens: a part is a token, or several
  // whose bytes together make a character.
  parts({ tokens, ps }) {
    const whole = this.text(tokens),
      parts = [];
    let start = 0,
      p = 1;
    tokens.forEach((_, i) => {
      const end = i + 1 < tokens.length ? this.text(tokens.slice(0, i + 1)) : whole;
      p = Math.min(p, ps[i]);
      if (!whole.startsWith(end) || end.length <= start) return;
      parts.push({ text: whole.slice(start, end.length), p });
      [start, p] = [end.length, 1];
    });
    return parts;
  }

  pieces(ids) {
    return ids.map((id) => this.tokenizer.pieces[id]);
  }

  // The hypotheses for a text, best score first: { text, tokens, ps, score, logP, meanP, lost }, the steps of the beam, and what
  // is strange about the text. Where the best has lost something and a wider beam has lost less, they are of that, first what has
  // lost the fewest, and `byScore` is the first of the beam that was asked for. Without positions, or `without` some heads
  // ("cross.0.3"), if so asked. Of the text's nTokens tokens the first ones are translated, as many as `longest` lets in.
  translate(request) {
    return withoutPauses(this.translateWithPauses(request));
  }

  *translateWithPauses(request) {
    const {
      text,
      beamSize = 4,
      alpha = 0.6,
      nBest = beamSize,
      maxExtra = 50,
      positions = true,
      without = [],
      longest = this.maxSource,
      back = false,
    } = request;
    this.model.change = { positions, without: new Set(without) };
    const ids = this.ids(text, back),
      source = this.cut(ids, longest),
      steps = [];
    const nTokens = ids.length + 1,
      same = asRead(text);
    if (!source.length) {
      const hypotheses = same
        ? [{ text: same, tokens: [], score: 0, logP: 0, meanP: 1, lost: [] }]
        : [];
      return { source, nTokens, hypotheses, steps, strange: "" };
    }
    const { longest: longestWords, words = ["", ""] } = this.doubt,
      turn = (pair) => (back ? [...pair].reverse() : pair);
    const [, to] = turn(this.languages),
      translated = this.translated[Number(back)],
      { model } = this;
    const strange = strangeness(text, this.tokenizer, {
      longest: longestWords,
      words: turn(words),
      translated,
    });
    const asTranslations = (found) =>
      found.map((one) => {
        const translation = this.text(one.tokens);
        return {
          text: translation,
          meanP: meanProbability(one),
          lost: lostWords(same, translation, to, translated),
          ...one,
        };
      });
    const onStep = (seen) => steps.push(seen),
      width = WIDER * beamSize;
    const found = yield* beamSearchWithPauses(model, source, {
      beamSize,
      alpha,
      nBest,
      maxExtra,
      onStep,
    });
    let hypotheses = asTranslations(found),
      byScore = null;
    if (beamSize > 1 && hypotheses.length && hypotheses[0].lost.length) {
      const wide = yield* beamSearchWithPauses(model, source, {
        beamSize: width,
        alpha,
        nBest: width,
        maxExtra,
      });
      const sorted = asTranslations(wide).sort((one, two) => one.lost.length - two.lost.length);
      if (sorted[0].lost.length < hypotheses[0].lost.length)
        [byScore, hypotheses] = [hypotheses[0], sorted.slice(0, nBest)];
    }
    return { source, nTokens, steps, hypotheses, byScore, strange };
  }

  // What the model sees and expects when it is told the target: at each place the `nRunners` most
  // probable next tokens with their probabilities, and the weights of every head,
  // attention[kind][layer][head][query] = one for each key.
  look({ source, target, positions = true, without = [], nRunners = 5 }) {
    this.model.change = { positions, without: new Set(without) };
    const { bos_id, eos_id, N, h } = this.config,
      attention = {},
      next = [];
    for (const kind of ["encoder", "decoder", "cross"]) {
      attention[kind] = Array.from({ length: N }, () => Array.from({ length: h }, () => []));
    }
    this.model.record = (kind, layer, head, weights) =>
      attention[kind][layer][head].push([...weights]);
    try {
      const state = this.model.start(source),
        read = [bos_id, ...target],
        told = [...target, eos_id];
      read.forEach((token, i) => {
        const logP = logSoftmax(this.model.step([token], state)[0]);
        const runners = largestOf(logP, nRunners).map((id) => ({ id, p: Math.exp(logP[id]) }));
        next.push({ id: told[i], p: Math.exp(logP[told[i]]), runners });
      });
    } finally {
      this.model.record = null;
    }
    const length = next.length; // a query of the decoder sees no later key: the rest of its row is 0
    for (const layer of attention.decoder) {
      for (const head of layer) for (const row of head) while (row.length < length) row.push(0);
    }
    return { next, attention };
  }
}

const [PATIENCE, TURN] = [300, 50]; // milliseconds of a search before other messages have their turn: at first, then

// In a worker, or where there is none: answers to messages { id, ask, ... }, the first of which
// brings the files. A search that takes longer is given up at "stop".
function serve(answer) {
  let loading, translator, isStopped, kernels, mayUseWasm;
  const known = ({ model, tokenizer }) => ({
    isWasm: model.matrices.isWasm,
    canSwap: tokenizer.backId >= 0,
  });
  const unlessStopped = async (work) => {
    isStopped = false;
    for (let until = performance.now() + PATIENCE; ;) {
      const { done, value } = work.next();
      if (done) return value;
      if (performance.now() < until) continue;
      await new Promise((goOn) => setTimeout(goOn, 0));
      if (isStopped) return null;
      until = performance.now() + TURN;
    }
  };
  const asks = {
    load: async ({ files, useWasm }) => {
      translator = await (loading = Translator.load(files, useWasm));
      [kernels, mayUseWasm] = [bytesOf(files.kernels), useWasm];
      return known(translator);
    },
    // Another model takes the place of the first when all of it is read.
    open: async ({ id, files, name }) => {
      const opened = await openFolder(files, name, kernels, mayUseWasm, (progress) =>
        answer({ id, progress }),
      );
      translator = opened.translator;
      return { ...opened.facts, ...known(translator) };
    },
    stop: () => {
      isStopped = true;
    },
    translate: async (request) => {
      const began = performance.now(),
        found = await unlessStopped(translator.translateWithPauses(request));
      if (!found) return { isStopped };
      const milliseconds = performance.now() - began;
      for (const one of found.hypotheses) one.pieces = translator.pieces(one.tokens);
      if (found.hypotheses.length)
        found.hypotheses[0].parts = translator.parts(found.hypotheses[0]);
      for (const one of found.steps.flat()) [one.piece] = translator.pieces([one.token]);
      return { ...found, milliseconds, sourcePieces: translator.pieces(found.source) };
    },
    look: (request) => {
      const seen = translator.look(request);
      const named = (one) => ({ ...one, piece: translator.tokenizer.pieces[one.id] });
      return {
        ...seen,
        next: seen.next.map((one) => ({ ...named(one), runners: one.runners.map(named) })),
      };
    },
  };
  return async (request) => {
    try {
      if (request.ask !== "load") await loading;
      answer({ id: request.id, ...(await asks[request.ask](request)) });
    } catch (error) {
      answer({ id: request.id, error: error instanceof Refusal ? error.message : String(error) });
    }
  };
}
