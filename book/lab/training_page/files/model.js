// The encoder-decoder of Figure 1, as `Transformer` in annotated_transformer/model has it: post-norm,
// one embedding matrix for source, target and softmax. Here there is no dropout.

class Transformer {
  // Matrices are drawn, the rest is 1 and 0 (`initialize` in reversal.py).
  constructor({ N, d_model, d_ff, h, positions = true }, generator) {
    Object.assign(this, { N, d_model, d_ff, h });
    this.table = positions
      ? positionalEncoding(LONGEST + 1, d_model)
      : new Float64Array((LONGEST + 1) * d_model);
    this.parameters = new Map();
    this.addMatrix(
      "embedding.weight",
      VOCAB_SIZE,
      d_model,
      () => generator.normal() / Math.sqrt(d_model),
    );
    for (let i = 0; i < N; i++) this.addLayer(`encoder.layers.${i}`, ["self_attention"], generator);
    for (let i = 0; i < N; i++)
      this.addLayer(`decoder.layers.${i}`, ["self_attention", "cross_attention"], generator);
  }

  addMatrix(name, rows, columns, draw) {
    const tensor = new Tensor(rows, columns);
    for (let i = 0; i < tensor.values.length; i++) tensor.values[i] = draw();
    this.parameters.set(name, tensor);
  }

  // The attentions and the feed-forward network of a layer, each with its LayerNorm, in PyTorch's
  // order. Matrices are uniform (Glorot and Bengio 2010), smaller on the way through a sub-layer.
  addLayer(name, attentions, generator) {
    const { d_model, d_ff, N } = this;
    const weight = (matrix, rows, columns) => {
      const gain = /W_[QK]$/.test(matrix) ? 1 : (8 * N) ** -0.25,
        limit = gain * Math.sqrt(6 / (rows + columns));
      this.addMatrix(
        `${name}.${matrix}.weight`,
        rows,
        columns,
        () => limit * (2 * generator.next() - 1),
      );
    };
    const constant = (vector, width, value) =>
      this.addMatrix(`${name}.${vector}`, 1, width, () => value);
    const norm = (number) => {
      constant(`add_norm_${number}.norm.weight`, d_model, 1);
      constant(`add_norm_${number}.norm.bias`, d_model, 0);
    };
    attentions.forEach((attention, i) => {
      for (const matrix of ["W_Q", "W_K", "W_V", "W_O"])
        weight(`${attention}.${matrix}`, d_model, d_model);
      norm(i + 1);
    });
    weight("feed_forward.W_1", d_ff, d_model);
    constant("feed_forward.W_1.bias", d_ff, 0);
    weight("feed_forward.W_2", d_model, d_ff);
    constant("feed_forward.W_2.bias", d_model, 0);
    norm(attentions.length + 1);
  }

  // The logits of the token after each of batch.targetIn, and each attention's result by its name.
  forward(tape, { source, targetIn }) {
    const own = (name) => this.parameters.get(name),
      seen = {};
    const embed = ({ ids, positions }) =>
      tape.embed(own("embedding.weight"), ids, positions, this.table);
    const addNorm = (name, x, y) =>
      tape.addNorm(x, y, own(`${name}.norm.weight`), own(`${name}.norm.bias`));
    const attend = (name, x, memory, spans) => {
      const [q, k, v] = ["Q", "K", "V"].map((letter) =>
        tape.linear(letter === "Q" ? x : memory, own(`${name}.W_${letter}.weight`)),
      );
      seen[name] = tape.attention(q, k, v, { ...spans, h: this.h });
      return tape.linear(seen[name], own(`${name}.W_O.weight`));
    };
    const feedForward = (name, x) => {
      const inner = tape.relu(tape.linear(x, own(`${name}.W_1.weight`), own(`${name}.W_1.bias`)));
      return tape.linear(inner, own(`${name}.W_2.weight`), own(`${name}.W_2.bias`));
    };
    let memory = embed(source),
      y = embed(targetIn);
    for (let i = 0; i < this.N; i++) {
      const name = `encoder.layers.${i}`,
        spans = { queries: source.spans, keys: source.spans };
      memory = addNorm(
        `${name}.add_norm_1`,
        memory,
        attend(`${name}.self_attention`, memory, memory, spans),
      );
      memory = addNorm(`${name}.add_norm_2`, memory, feedForward(`${name}.feed_forward`, memory));
    }
    for (let i = 0; i < this.N; i++) {
      const name = `decoder.layers.${i}`;
      const past = { queries: targetIn.spans, keys: targetIn.spans, causal: true };
      const cross = { queries: targetIn.spans, keys: source.spans };
      y = addNorm(`${name}.add_norm_1`, y, attend(`${name}.self_attention`, y, y, past));
      y = addNorm(`${name}.add_norm_2`, y, attend(`${name}.cross_attention`, y, memory, cross));
      y = addNorm(`${name}.add_norm_3`, y, feedForward(`${name}.feed_forward`, y));
    }
    return { logits: tape.linear(y, own("embedding.weight")), seen };
  }

  // The most probable token after each of batch.targetIn.
  best(batch) {
    const { values, rows, columns } = this.forward(new Tape(), batch).logits;
    return Array.from({ length: rows }, (_, row) => {
      let best = 0;
      for (let id = 1; id < columns; id++)
        if (values[row * columns + id] > values[row * columns + best]) best = id;
      return best;
    });
  }
}

// PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(the same) (section 3.5), rounded
// to 32 bits as PyTorch's are.
function positionalEncoding(length, d_model) {
  const table = new Float64Array(length * d_model);
  for (let pos = 0; pos < length; pos++) {
    for (let i = 0; i < d_model; i += 2) {
      const angle = pos / 10000 ** (i / d_model);
      table[pos * d_model + i] = Math.fround(Math.sin(angle));
      table[pos * d_model + i + 1] = Math.fround(Math.cos(angle));
    }
  }
  return table;
}
