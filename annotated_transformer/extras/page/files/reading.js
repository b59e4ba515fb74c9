// A checkpoint that a visitor drops on the page, read and rounded to 8 bits where the page's own model was rounded
// before: a folder of this package, or one of a Marian model as Hugging Face keeps it (opus-mt). What does not fit is
// refused in one line.

const MOST_PARAMETERS = 75e6,
  MOST_JSON = 2 ** 23,
  WIDEST = 8259; // columns: see int8_rows.py
const MOST_WORD_BYTES = 2 ** 26,
  MOST_PIECES = 2 ** 20;
const BLOCK = 2 ** 22; // bytes of a file that are read at a time

class Refusal extends Error {}
const refuseUnless = (isRight, line) => {
  if (!isRight) throw new Refusal(line);
};
const shown = (value) => String(value).slice(0, 60); // of a stranger's file
const isCount = (n) => Number.isSafeInteger(n) && n >= 0;

async function readJson(file, start = 0, end = file.size) {
  refuseUnless(end - start <= MOST_JSON, `${file.name} is too large to be what it should be`);
  try {
    const content = JSON.parse(await file.slice(start, end).text());
    if (content && typeof content === "object") return content;
  } catch {
    /* said below */
  }
  throw new Refusal(`${file.name} is no JSON object that can be read`);
}

// The fields of a protocol buffer, as [number, value]: an integer, or the bytes of what is none.
function* protobufFields(bytes) {
  let place = 0;
  const varint = () => {
    let value = 0;
    for (let factor = 1; place < bytes.length; factor *= 128) {
      const byte = bytes[place++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
    throw new Refusal("the tokenizer's file is cut off");
  };
  while (place < bytes.length) {
    const tag = varint(),
      kind = tag % 8;
    if (kind === 0) {
      yield [Math.floor(tag / 8), varint()];
      continue;
    }
    const length = { 1: 8, 2: kind === 2 && varint(), 5: 4 }[kind];
    refuseUnless(
      length !== undefined && place + length <= bytes.length,
      "the tokenizer's file is damaged",
    );
    yield [Math.floor(tag / 8), bytes.subarray(place, (place += length))];
  }
}

// A SentencePiece model: kind, pieces, scores, types, the normaliser's rule, and how it treats spaces and unknown letters.
async function readSentencePiece(file) {
  refuseUnless(
    file.size <= MOST_WORD_BYTES,
    `${file.name} has more than ${MOST_WORD_BYTES / 2 ** 20} MB`,
  );
  const messages = { 2: new Map(), 3: new Map() },
    { 2: training, 3: normalizing } = messages,
    text = new TextDecoder();
  const found = { pieces: [], scores: [], types: [] };
  const isBytes = (value, length) =>
    value instanceof Uint8Array && [undefined, value.length].includes(length);
  for (const [number, message] of protobufFields(new Uint8Array(await file.arrayBuffer()))) {
    if (number > 3) continue;
    refuseUnless(
      isBytes(message) && found.pieces.length < MOST_PIECES,
      `${file.name} is no SentencePiece model, or has too many pieces`,
    );
    if (number > 1) {
      for (const [part, value] of protobufFields(message)) messages[number].set(part, value);
      continue;
    }
    const piece = new Map(protobufFields(message)),
      score = piece.get(2) ?? new Uint8Array(4),
      type = piece.get(3) ?? NORMAL;
    const isSound = isBytes(piece.get(1)) && isBytes(score, 4) && isCount(type);
    found.pieces.push(isSound ? text.decode(piece.get(1)) : "");
    found.scores.push(
      isSound ? new DataView(score.buffer, score.byteOffset).getFloat32(0, true) : 0,
    );
    found.types.push(type);
  }
  const kind = { 1: "unigram", 2: "bpe" }[training.get(3) ?? 1],
    n = found.pieces.length,
    rule = normalizing.get(2) ?? new Uint8Array();
  const isWhole =
    n &&
    !found.pieces.includes("") &&
    new Set(found.pieces).size === n &&
    found.scores.every(Number.isFinite);
  const isKnown =
    kind &&
    isWhole &&
    !found.types.includes(5) &&
    !training.get(24) &&
    (normalizing.get(3) ?? 1) &&
    (normalizing.get(5) ?? 1);
  refuseUnless(
    isKnown,
    `${file.name} is no SentencePiece model of kind bpe or unigram with a space before the text`,
  );
  const size =
    isBytes(rule) && rule.length > 3
      ? new DataView(rule.buffer, rule.byteOffset).getUint32(0, true)
      : 0;
  refuseUnless(
    rule.length === 0 || (size > 0 && size % 1024 === 0 && size <= rule.length - 4),
    `${file.name} has a damaged table of characters`,
  );
  return {
    ...found,
    kind,
    rule,
    hasBytes: Boolean(training.get(35)),
    removesSpaces: Boolean(normalizing.get(4) ?? 1),
  };
}

// Marian's two SentencePiece models, and the ids that vocab.json gives their pieces.
class MarianTokenizer {
  constructor(source, vocabulary) {
    this.source = new Tokenizer(source, source.rule);
    [this.ids, this.normalizer, this.removesSpaces] = [
      this.source.ids,
      this.source.normalizer,
      source.removesSpaces,
    ];
    this.backId = -1;
    this.vocabulary = new Map(Object.entries(vocabulary));
    const isNumbered = [...this.vocabulary.values()].every((id) => isCount(id) && id < MOST_PIECES);
    refuseUnless(
      isNumbered && this.vocabulary.has("<unk>"),
      "vocab.json must give each piece a number, and one to <unk>",
    );
    this.pieces = [];
    for (const [piece, id] of this.vocabulary) this.pieces[id] = piece;
  }

  encode(text) {
    const [code] = text.match(/^>>.*?<</su) ?? [""],
      found = code ? [code] : []; // >>deu<< names a language
    let spaced = this.normalizer.normalize(text.slice(code.length));
    if (this.removesSpaces) spaced = spaced.replace(/ +/g, " ").replace(/^ | $/g, "");
    if (spaced) spaced = (SPACE + spaced).replaceAll(" ", SPACE);
    let isUnknown = false; // a run of unknown letters is one unknown piece
    for (const piece of this.source.split(this.source, spaced)) {
      const isKnown = this.ids.has(piece);
      if (isKnown || !isUnknown) found.push(isKnown ? piece : "<unk>");
      isUnknown = !isKnown;
    }
    return found.map((piece) => this.vocabulary.get(piece) ?? this.vocabulary.get("<unk>"));
  }

  decode(ids) {
    const pieces = ids
      .map((id) => this.pieces[id])
      .filter((piece) => !["</s>", "<pad>", "<unk>"].includes(piece));
    return pieces.join("").replaceAll(SPACE, " ").replace(/^ /, "");
  }
}

// The tensors of a safetensors file by name: `shape`, and what reads its numbers from `row` on, `nRows` of them.
async function openTensors(file) {
  const start = new DataView(await file.slice(0, 8).arrayBuffer()),
    length = file.size < 8 ? 0 : Number(start.getBigUint64(0, true));
  refuseUnless(length > 0 && length <= file.size - 8, `${file.name} is no safetensors file`);
  const header = await readJson(file, 8, 8 + length),
    tensors = new Map();
  delete header.__metadata__;
  for (const [name, entry] of Object.entries(header)) {
    const { dtype, shape, data_offsets: places } = entry ?? {};
    const width = { F32: 4, F16: 2, BF16: 2 }[dtype];
    const isSound =
      Array.isArray(shape) &&
      shape.every(isCount) &&
      Array.isArray(places) &&
      places.every(isCount) &&
      places.length === 2 &&
      8 + length + places[1] <= file.size;
    refuseUnless(
      isSound,
      `${file.name} is damaged: ${shown(name)} lies beyond its end or has no shape`,
    );
    const nRows = shape.length > 1 ? shape[0] : 1,
      nColumns = shape
        .slice(nRows === shape[0] && shape.length > 1 ? 1 : 0)
        .reduce((n, m) => n * m, 1);
    tensors.set(name, {
      shape,
      size: nRows * nColumns,
      read: async (row, n) => {
        refuseUnless(
          width && places[1] - places[0] === nRows * nColumns * width,
          `${name} has numbers of the kind ${shown(dtype)}, and not float32, float16 or bfloat16`,
        );
        const from = 8 + length + places[0] + row * nColumns * width;
        return floats(await file.slice(from, from + n * nColumns * width).arrayBuffer(), dtype);
      },
    });
  }
  return tensors;
}

function floats(buffer, dtype) {
  if (dtype === "F32") return new Float32Array(buffer);
  const halves = new Uint16Array(buffer),
    values = new Float32Array(halves.length);
  if (dtype === "BF16") {
    const bits = new Uint32Array(values.buffer);
    for (let i = 0; i < halves.length; i++) bits[i] = halves[i] << 16;
    return values;
  }
  for (let i = 0; i < halves.length; i++) {
    const half = halves[i],
      exponent = (half >> 10) & 31,
      fraction = half & 1023;
    const size =
      exponent === 31
        ? fraction
          ? NaN
          : Infinity
        : exponent
          ? (1 + fraction / 1024) * 2 ** (exponent - 15)
          : fraction * 2 ** -24;
    values[i] = half & 0x8000 ? -size : size;
  }
  return values;
}

// What the model needs, by its names in the page: a shape for each tensor.
function shapesOf({
  N,
  d_model: d,
  d_ff,
  h,
  d_k,
  d_v,
  vocab_size,
  max_len,
  bias,
  norm,
  positions,
  final_norm,
  output_bias,
}) {
  const shapes = { "embedding.weight": [vocab_size, d] };
  const linear = (name, nOut, nIn, hasBias) => {
    shapes[`${name}.weight`] = [nOut, nIn];
    if (hasBias) shapes[`${name}.bias`] = [nOut];
  };
  const layerNorm = (name) => {
    shapes[`${name}.weight`] = shapes[`${name}.bias`] = [d];
  };
  for (const [stack, attentions] of [
    ["encoder", ["self"]],
    ["decoder", ["self", "cross"]],
  ]) {
    for (let i = 0; i < N; i++) {
      const layer = `${stack}.layers.${i}`;
      for (const attention of attentions) {
        for (const [name, n] of [
          ["W_Q", h * d_k],
          ["W_K", h * d_k],
          ["W_V", h * d_v],
        ])
          linear(`${layer}.${attention}_attention.${name}`, n, d, bias);
        linear(`${layer}.${attention}_attention.W_O`, d, h * d_v, bias);
      }
      linear(`${layer}.feed_forward.W_1`, d_ff, d, true);
      linear(`${layer}.feed_forward.W_2`, d, d_ff, true);
      for (let n = 1; n <= attentions.length + 1; n++) layerNorm(`${layer}.add_norm_${n}.norm`);
    }
    if (norm === "pre" || final_norm) layerNorm(`${stack}.norm`);
  }
  if (output_bias) shapes["embedding.bias"] = [vocab_size];
  if (positions === "learned") shapes["positions.weight"] = [max_len, d];
  return shapes;
}

// The name that Marian's file has for a tensor of the page.
function inMarian(name) {
  if (name === "embedding.weight") return "model.shared.weight";
  const last = name.startsWith("encoder") ? 2 : 3;
  const [, stack, layer, rest] = name.match(/^(\w+)\.layers\.(\d+)\.(.*)$/);
  return (
    `model.${stack}.layers.${layer}.` +
    rest
      .replace(
        /^(self|cross)_attention\.W_([QKVO])/,
        (_, kind, side) =>
          `${kind === "self" ? "self_attn" : "encoder_attn"}.${side === "O" ? "out" : side.toLowerCase()}_proj`,
      )
      .replace(/^feed_forward\.W_([12])/, "fc$1")
      .replace(/^add_norm_(\d)\.norm/, (_, n) =>
        Number(n) === last
          ? "final_layer_norm"
          : n === "1"
            ? "self_attn_layer_norm"
            : "encoder_attn_layer_norm",
      )
  );
}

// Our own config.json, or the page's settings for Marian's; both name what they cannot have. What is left out is as in
// Python's ModelConfig, and a switch that is not known here must be off.
const COUNTS = ["vocab_size", "N", "d_model", "d_ff", "h", "d_k", "d_v", "max_len"];
const SWITCHES = {
  scaled_attention: true,
  bias: false,
  final_norm: false,
  output_bias: false,
  zero_start: false,
};
const LEARNING = ["p_drop", "attention_dropout", "ffn_dropout", "initialization"];
const OTHERS = ["norm", "positions", "first_position", "activation", "pad_id", "bos_id", "eos_id"];
function ownConfig({ model: stored }) {
  const model = { ...SWITCHES, first_position: 0, ...stored };
  for (const name of COUNTS)
    refuseUnless(
      isCount(model[name]) && model[name] > 0,
      `config.json: ${name} must be a positive integer, got ${shown(model[name])}`,
    );
  for (const name of Object.keys(SWITCHES))
    refuseUnless(
      typeof model[name] === "boolean",
      `config.json: ${name} must be true or false, got ${shown(model[name])}`,
    );
  refuseUnless(
    isCount(model.first_position),
    `config.json: first_position must be 0 or more, got ${shown(model.first_position)}`,
  );
  refuseUnless(model.N <= 1024, `config.json: N must be at most 1024, got ${model.N}`);
  const known = [...COUNTS, ...Object.keys(SWITCHES), ...LEARNING, ...OTHERS],
    unknown = Object.keys(model).find((name) => model[name] && !known.includes(name));
  const isLater = unknown || model.positions === "rotary" || model.activation === "swiglu";
  refuseUnless(
    !isLater,
    `this page knows no RMSNorm, rotary positions, SwiGLU or qk_norm, and this model has ${shown(unknown ?? `${model.positions} positions with ${model.activation}`)}`,
  );
  const isKnown =
    ["post", "pre"].includes(model.norm) &&
    ["sinusoidal", "concatenated", "learned", "none"].includes(model.positions) &&
    Object.hasOwn(ACTIVATIONS, model.activation);
  refuseUnless(
    isKnown,
    `config.json: norm ${shown(model.norm)} with positions ${shown(model.positions)} and activation ${shown(model.activation)} is unknown here`,
  );
  refuseUnless(model.d_model % 2 === 0, `config.json: d_model must be even, got ${model.d_model}`);
  return model;
}
// What config.json says of doubts: a probability, a number of words, the commonest words of both sides, and words.
function doubtOf({ doubt = {} }) {
  const { unsure_below = 0, longest = Infinity, words = ["", ""], translated = "" } = doubt ?? {};
  const isSound =
    doubt &&
    doubt.constructor === Object &&
    unsure_below >= 0 &&
    unsure_below <= 1 &&
    longest > 0 &&
    [unsure_below, longest].every((n) => typeof n === "number") &&
    [words, [translated, ""].flat().slice(0, 2)].every(
      (texts) =>
        Array.isArray(texts) &&
        texts.length === 2 &&
        texts.every((text) => typeof text === "string"),
    );
  refuseUnless(
    isSound,
    "config.json: doubt must have numbers (unsure_below, longest) and two texts (words, translated)",
  );
  return doubt;
}
// The languages of a corpus that is called ...-en-de, or ["", ""].
function languagesIn(name) {
  const pairs = [...name.matchAll(/-([a-z]{2})(?=-([a-z]{2})(?![a-z]))/g)];
  return pairs.length ? pairs[pairs.length - 1].slice(1) : ["", ""];
}
function marianConfig(config) {
  const {
    d_model,
    encoder_layers: N,
    encoder_attention_heads: h,
    encoder_ffn_dim: d_ff,
    vocab_size,
  } = config;
  const same = ["layers", "attention_heads", "ffn_dim"].every(
    (size) => config[`encoder_${size}`] === config[`decoder_${size}`],
  );
  refuseUnless(
    same,
    "encoder and decoder of this Marian model are not of one size, as this page needs them",
  );
  const isPlain =
    config.scale_embedding === true &&
    !config.normalize_before &&
    !config.normalize_embedding &&
    config.static_position_embeddings !== false &&
    config.share_encoder_decoder_embeddings !== false;
  refuseUnless(
    isPlain,
    "this page knows Marian models that are post-norm, with sinusoids, one scaled embedding for both sides and no norm behind it",
  );
  const activation = { relu: "relu", gelu: "gelu", swish: "silu", silu: "silu" }[
    config.activation_function
  ];
  refuseUnless(
    typeof activation === "string",
    `this page does not know the activation ${shown(config.activation_function)}`,
  );
  return {
    ...ownConfig({
      model: {
        N,
        h,
        d_model,
        d_ff,
        vocab_size,
        d_k: d_model / h,
        d_v: d_model / h,
        max_len: config.max_position_embeddings,
        norm: "post",
        positions: "none",
        activation,
      },
    }),
    positions: "marian",
    bias: true,
    scaled_attention: true,
    pad_id: config.pad_token_id,
    bos_id: config.decoder_start_token_id ?? config.pad_token_id,
    eos_id: config.eos_token_id,
  };
}

// Integers from -127 to 127 and a scale for each row, as `round_rows` of int8_rows.py computes them.
async function roundedRows({ shape: [nRows, nColumns], read }, name, tell) {
  const values = new Int8Array(nRows * nColumns),
    scales = new Float32Array(nRows);
  const nAtOnce = Math.max(1, Math.floor(BLOCK / 4 / nColumns));
  for (let first = 0; first < nRows; first += nAtOnce) {
    const n = Math.min(nAtOnce, nRows - first),
      rows = await read(first, n);
    for (let r = 0; r < n; r++) {
      const start = r * nColumns,
        end = start + nColumns,
        place = (first + r) * nColumns - start;
      let largest = 0,
        zero = 0;
      for (let i = start; i < end; i++) {
        largest = Math.max(largest, Math.abs(rows[i]));
        zero += rows[i] * 0;
      }
      refuseUnless(zero === 0, `model.safetensors has values that are not finite, in ${name}`);
      const scale = Math.fround(largest / 127) || 1;
      for (let i = start; i < end; i++)
        values[place + i] = Math.max(-127, Math.min(127, Math.floor(rows[i] / scale + 0.5)));
      scales[first + r] = scale;
    }
    tell(n * nColumns);
  }
  return { values, scales };
}

// The translator of the `files` of a folder called `name`, and what a page should know of it. `tell` hears what
// share of the model is read.
async function openFolder(files, name, kernels, useWasm, tell) {
  const file = (wanted) => {
    const found = files.find((one) => one.name === wanted);
    refuseUnless(found, `the folder has no ${wanted}`);
    return found;
  };
  const settings = await readJson(file("config.json")),
    isOurs = Boolean(settings.model?.d_model);
  const kind = settings.model_type ?? "no type";
  refuseUnless(
    isOurs || kind === "marian",
    `this page reads checkpoints of annotated_transformer and of Marian, and this config.json is of ${shown(kind)}`,
  );
  const config = isOurs ? ownConfig(settings) : marianConfig(settings),
    doubt = doubtOf(settings),
    corpus = settings.corpus ?? "";
  refuseUnless(
    typeof corpus === "string",
    `config.json: corpus must be a name, got ${shown(corpus)}`,
  );
  for (const id of ["pad_id", "bos_id", "eos_id"]) {
    const isThere =
      Number.isInteger(config[id]) && config[id] >= 0 && config[id] < config.vocab_size;
    refuseUnless(
      isThere,
      `config.json: ${id} must be an id of the vocabulary, got ${shown(config[id])}`,
    );
  }
  const shapes = shapesOf(config),
    columns = Object.values(shapes).map(([, n]) => n || 0);
  const n_parameters = Object.values(shapes).reduce(
    (n, shape) => n + shape.reduce((one, other) => one * other, 1),
    0,
  );
  const million = (n) => `${(n / 1e6).toFixed(1)} million`;
  refuseUnless(
    n_parameters <= MOST_PARAMETERS,
    `this page takes at most ${million(MOST_PARAMETERS)} parameters, and this model has ${million(n_parameters)}`,
  );
  refuseUnless(
    columns.every((n) => n <= WIDEST),
    `this page adds up at most ${WIDEST} products in a row`,
  );
  const isPickled =
    !files.some((one) => one.name === "model.safetensors") &&
    files.some((one) => one.name === "pytorch_model.bin");
  refuseUnless(
    !isPickled,
    "the weights are in pytorch_model.bin, which a page cannot read safely: save the model again as model.safetensors",
  );

  let tokenizer;
  if (isOurs) {
    const model = await readSentencePiece(file("tokenizer.model"));
    refuseUnless(
      model.hasBytes && !model.removesSpaces,
      "tokenizer.model is not as Tokenizer.train makes it: with bytes for unknown letters, and no spaces removed",
    );
    tokenizer = new Tokenizer(model, model.rule);
  } else {
    await readSentencePiece(file("target.spm")); // text is put together from pieces alone: it must only be sound
    tokenizer = new MarianTokenizer(
      await readSentencePiece(file("source.spm")),
      await readJson(file("vocab.json")),
    );
  }
  const isWhole =
    tokenizer.pieces.length === config.vocab_size &&
    !tokenizer.pieces.includes(undefined) &&
    (isOurs || tokenizer.vocabulary.size === config.vocab_size);
  refuseUnless(
    isWhole,
    `the tokenizer has ${tokenizer.pieces.length} tokens and the model ${config.vocab_size}: they do not belong together`,
  );

  const stored = await openTensors(file("model.safetensors")),
    tensors = {};
  const SAME = [
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
  ];
  let nRead = 0;
  const count = (n) => tell((nRead += n) / n_parameters);
  for (const [wanted, shape] of Object.entries(shapes)) {
    let its = isOurs ? wanted : inMarian(wanted);
    if (its === SAME[0]) its = SAME.find((one) => stored.has(one)) ?? its; // shared by both sides: a file keeps one of them
    const tensor = stored.get(its);
    refuseUnless(
      tensor && tensor.shape.join() === shape.join(),
      `model.safetensors has no ${its} of shape ${shape.join(" by ")}`,
    );
    if (shape.length > 1 && wanted !== "positions.weight") {
      const { values, scales } = await roundedRows(tensor, its, count);
      tensors[wanted] = { shape, values };
      tensors[`${wanted.slice(0, -".weight".length)}.scale`] = {
        shape: [shape[0]],
        values: scales,
      };
    } else {
      tensors[wanted] = { shape, values: await tensor.read(0, shape.length > 1 ? shape[0] : 1) };
      refuseUnless(
        !tensors[wanted].values.some((value) => !Number.isFinite(value)),
        `model.safetensors has values that are not finite, in ${its}`,
      );
      count(tensor.size);
    }
  }
  if (!isOurs) {
    const values = stored.has("final_logits_bias")
      ? await stored.get("final_logits_bias").read(0, 1)
      : new Float32Array(config.vocab_size);
    const isSound = values.length === config.vocab_size && values.every(Number.isFinite);
    refuseUnless(
      isSound,
      "final_logits_bias is not as long as the vocabulary, or has values that are not finite",
    );
    values[config.pad_id] = -1e4; // is never said
    tensors["embedding.bias"] = { shape: [config.vocab_size], values };
  }
  const facts = {
    config,
    n_parameters,
    languages: languagesIn((isOurs && corpus) || name),
    doubt,
    name,
  };
  return { facts, translator: new Translator(facts, tokenizer, tensors, kernels, useWasm) };
}
