// The Transformer (section 3), from token ids to logits, for one sentence at a time.
//
// Numbers are JavaScript's own, of 64 bits, in arrays of one row after another.

// LayerNorm of each row.
function layerNorm({ weight, bias }, x) {
  const width = weight.length,
    y = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += width) {
    let mean = 0,
      variance = 0;
    for (let i = 0; i < width; i++) mean += x[start + i] / width;
    for (let i = 0; i < width; i++) variance += (x[start + i] - mean) ** 2 / width;
    const deviation = Math.sqrt(variance + 1e-5);
    for (let i = 0; i < width; i++)
      y[start + i] = ((x[start + i] - mean) / deviation) * weight[i] + bias[i];
  }
  return y;
}

// The error function: its series near 0, a continued fraction for the rest of it beyond.
function erf(x) {
  const z = Math.abs(x);
  if (z > 6) return Math.sign(x);
  if (z < 2.5) {
    let term = x,
      sum = x;
    for (let n = 1; n < 60; n++) {
      term *= (-x * x) / n;
      sum += term / (2 * n + 1);
    }
    return (2 / Math.sqrt(Math.PI)) * sum;
  }
  let fraction = z;
  for (let n = 80; n > 0; n--) fraction = z + n / 2 / fraction;
  return Math.sign(x) * (1 - Math.exp(-z * z) / Math.sqrt(Math.PI) / fraction);
}

const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => (x / 2) * (1 + erf(x / Math.SQRT2)),
  silu: (x) => x / (1 + Math.exp(-x)),
};

const sum = (x, y) => x.map((value, i) => value + y[i]);
// The rows of a matrix, as a list.
const rowsOf = (x, width) =>
  Array.from({ length: x.length / width }, (_, i) => x.subarray(i * width, (i + 1) * width));
function join(rows) {
  const all = new Float64Array(rows.reduce((length, row) => length + row.length, 0));
  rows.reduce((start, row) => (all.set(row, start), start + row.length), 0);
  return all;
}

class Transformer {
  // `tensors` are those of the checkpoint, by name; a matrix X.weight of integers has its X.scale.
  // `change` may take things away: `positions: false`, and `without`, a Set of heads such as
  // "cross.0.3" (kind, layer, head), each of which then adds nothing. `record`, if it is set, is
  // called with kind, layer, head and the weights of each query.
  constructor(config, tensors, kernels, useWasm = true) {
    this.config = config;
    this.tensors = tensors;
    this.change = { positions: true, without: new Set() };
    this.record = null;
    this.linears = {};
    for (const [name, { values, shape }] of Object.entries(tensors)) {
      const stem = name.replace(/\.?weight$/, ""),
        scales = tensors[`${stem}.scale`];
      if (!scales) continue;
      const bias = tensors[`${stem}.bias`];
      const [nOut, nIn] = shape;
      this.linears[stem] = { values, nIn, nOut, scales: scales.values, bias: bias && bias.values };
    }
    this.matrices = new Matrices(kernels, Object.values(this.linears), useWasm);
  }

  linear(name, x) {
    return this.matrices.linear(this.linears[name], x);
  }

  norm(name, x) {
    const [weight, bias] = ["weight", "bias"].map((part) => this.tensors[`${name}.${part}`].values);
    return layerNorm({ weight, bias }, x);
  }

  // The residual connection round a sub-layer (section 3.1).
  addNorm(name, x, sublayer) {
    if (this.config.norm === "post") return this.norm(`${name}.norm`, sum(x, sublayer(x)));
    return sum(x, sublayer(this.norm(`${name}.norm`, x)));
  }

  feedForward(name, x) {
    return this.linear(
      `${name}.W_2`,
      this.linear(`${name}.W_1`, x).map(ACTIVATIONS[this.config.activation]),
    );
  }

  // E[token] sqrt(d_model) + positions (sections 3.4 and 3.5).
  embed(tokens, firstPosition, isSamePosition = false) {
    const { d_model, zero_start, bos_id } = this.config,
      { values, scales } = this.linears.embedding;
    const x = new Float64Array(tokens.length * d_model);
    tokens.forEach((token, row) => {
      const position = this.position(firstPosition + (isSamePosition ? 0 : row));
      const scale = zero_start && token === bos_id ? 0 : scales[token];
      for (let i = 0; i < d_model; i++) {
        x[row * d_model + i] =
          values[token * d_model + i] * scale * Math.sqrt(d_model) + position[i];
      }
    });
    return x;
  }

  position(pos) {
    const { d_model, positions } = this.config,
      row = new Float64Array(d_model);
    if (!this.change.positions || positions === "none") return row;
    if (positions === "learned") {
      return this.tensors["positions.weight"].values.subarray(pos * d_model, (pos + 1) * d_model);
    }
    const isInterleaved = positions === "sinusoidal",
      half = d_model / 2; // Marian's are the printed ones, sines first
    for (let i = 0; i < half; i++) {
      const exponent = positions === "concatenated" ? i / Math.max(half - 1, 1) : (2 * i) / d_model;
      const angle = (pos + (this.config.first_position || 0)) / 10000 ** exponent;
      row[isInterleaved ? 2 * i : i] = Math.fround(Math.sin(angle));
      row[isInterleaved ? 2 * i + 1 : half + i] = Math.fround(Math.cos(angle));
    }
    return row;
  }

  // Each row's keys and values, all heads of it side by side.
  keysAndValues(name, x) {
    const { h, d_k, d_v } = this.config;
    return [
      rowsOf(this.linear(`${name}.W_K`, x), h * d_k),
      rowsOf(this.linear(`${name}.W_V`, x), h * d_v),
    ];
  }

  // Multi-head attention (section 3.2.2). `seen(i)` is a list of keys and one of values: those that
  // query i may see.
  attention(name, kind, layer, x, seen) {
    const queries = rowsOf(this.linear(`${name}.W_Q`, x), this.config.h * this.config.d_k);
    const rows = queries.map((query, i) => this.heads(kind, layer, query, ...seen(i)));
    return this.linear(`${name}.W_O`, join(rows));
  }

  // Concat(head_1, ..., head_h) for one query; head_i is softmax(q K^T / sqrt(d_k)) V (equation 1).
  heads(kind, layer, query, keys, values) {
    const { h, d_k, d_v, scaled_attention } = this.config,
      output = new Float64Array(h * d_v);
    const scale = scaled_attention ? 1 / Math.sqrt(d_k) : 1;
    for (let head = 0; head < h; head++) {
      const weights = new Float64Array(keys.length);
      for (let j = 0; j < keys.length; j++) {
        const key = keys[j];
        let score = 0;
        for (let i = head * d_k; i < (head + 1) * d_k; i++) score += query[i] * key[i];
        weights[j] = score * scale;
      }
      softmax(weights);
      if (this.record) this.record(kind, layer, head, weights);
      if (this.change.without.has(`${kind}.${layer}.${head}`)) continue;
      for (let j = 0; j < keys.length; j++) {
        const value = values[j],
          weight = weights[j];
        for (let i = head * d_v; i < (head + 1) * d_v; i++) output[i] += weight * value[i];
      }
    }
    return output;
  }

  // The encoder's output for each source token, the "memory" (section 3.1).
  encode(source) {
    let x = this.embed(source, 0);
    for (let layer = 0; layer < this.config.N; layer++) {
      const name = `encoder.layers.${layer}`;
      x = this.addNorm(`${name}.add_norm_1`, x, (y) => {
        const all = this.keysAndValues(`${name}.self_attention`, y);
        return this.attention(`${name}.self_attention`, "encoder", layer, y, () => all);
      });
      x = this.addNorm(`${name}.add_norm_2`, x, (y) => this.feedForward(`${name}.feed_forward`, y));
    }
    return this.finalNorm("encoder", x);
  }

  // Before the first step. What decoding keeps are the source's keys and values and, as a tree, the
  // tokens decoded so far: `pasts` says which of them are in each hypothesis.
  start(source) {
    const memory = this.encode(source),
      layers = [...Array(this.config.N).keys()];
    return {
      memory: layers.map((layer) =>
        this.keysAndValues(`decoder.layers.${layer}.cross_attention`, memory),
      ),
      keys: layers.map(() => []),
      values: layers.map(() => []),
      pasts: [[]],
      position: 0,
    };
  }

  // Extend every hypothesis by one token; for each the logits of the token after it.
  step(tokens, state) {
    let x = this.embed(tokens, state.position, true);
    const nBefore = state.keys[0].length;
    state.pasts = state.pasts.map((past, w) => [...past, nBefore + w]);
    state.position += 1;
    for (let layer = 0; layer < this.config.N; layer++) {
      const name = `decoder.layers.${layer}`,
        keys = state.keys[layer],
        values = state.values[layer];
      x = this.addNorm(`${name}.add_norm_1`, x, (y) => {
        const [newKeys, newValues] = this.keysAndValues(`${name}.self_attention`, y);
        keys.push(...newKeys);
        values.push(...newValues);
        const past = (w) => [keys, values].map((all) => state.pasts[w].map((i) => all[i]));
        return this.attention(`${name}.self_attention`, "decoder", layer, y, past);
      });
      x = this.addNorm(`${name}.add_norm_2`, x, (y) =>
        this.attention(`${name}.cross_attention`, "cross", layer, y, () => state.memory[layer]),
      );
      x = this.addNorm(`${name}.add_norm_3`, x, (y) => this.feedForward(`${name}.feed_forward`, y));
    }
    return rowsOf(this.linear("embedding", this.finalNorm("decoder", x)), this.config.vocab_size);
  }

  // Hypothesis w continues what was hypothesis parents[w].
  reorder(parents, state) {
    state.pasts = parents.map((parent) => state.pasts[parent]);
  }

  // A pre-norm stack ends with a LayerNorm; the paper's post-norm needs none.
  finalNorm(stack, x) {
    return this.config.norm === "pre" || this.config.final_norm ? this.norm(`${stack}.norm`, x) : x;
  }
}

function softmax(scores) {
  let largest = -Infinity,
    total = 0;
  for (let i = 0; i < scores.length; i++) largest = Math.max(largest, scores[i]);
  for (let i = 0; i < scores.length; i++) total += scores[i] = Math.exp(scores[i] - largest);
  for (let i = 0; i < scores.length; i++) scores[i] /= total;
}
