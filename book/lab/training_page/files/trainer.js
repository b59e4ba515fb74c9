// Training (sections 5.2 and 5.3), and what the page is told of it.

const [BETA_1, BETA_2, EPS] = [0.9, 0.98, 1e-9];

// factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (equation 3).
function learningRate(step, { d_model, warmupSteps, factor }) {
  return factor * d_model ** -0.5 * Math.min(step ** -0.5, step * warmupSteps ** -1.5);
}

// A model and its optimizer, Adam (section 5.3), which learn from the words that a seed brings.
class Trainer {
  // `settings` are those of `page_settings` in reversal.py, and a seed.
  constructor(settings) {
    this.settings = settings;
    this.generator = new Generator(settings.seed);
    this.model = new Transformer(this.settings, this.generator);
    this.tensors = [...this.model.parameters.values()];
    this.means = this.tensors.map(({ values }) => new Float64Array(values.length));
    this.squares = this.tensors.map(({ values }) => new Float64Array(values.length));
    this.steps = 0;
  }

  // The loss of a batch, in nats a token; its gradient is added up in the model's tensors.
  lossOf(batch) {
    const tape = new Tape(),
      { logits } = this.model.forward(tape, batch);
    const loss = tape.crossEntropy(logits, batch.targetOut);
    tape.backward();
    return loss;
  }

  // One step on new words; the loss before it.
  step() {
    for (const tensor of this.tensors) tensor.grads?.fill(0);
    const loss = this.lossOf(reversalBatch(drawWords(this.generator, this.settings.nWords, false)));
    this.steps += 1;
    this.clip(this.settings.clipNorm);
    const rate = learningRate(this.steps, this.settings);
    this.tensors.forEach((tensor, i) => this.update(tensor, this.means[i], this.squares[i], rate));
    return loss;
  }

  // Gradients that are long together, all values as one vector, become `norm` long.
  clip(norm) {
    let squares = 0;
    for (const { grads } of this.tensors) for (const grad of grads) squares += grad ** 2;
    const factor = norm / (Math.sqrt(squares) + 1e-6);
    if (factor < 1)
      for (const { grads } of this.tensors)
        for (let i = 0; i < grads.length; i++) grads[i] *= factor;
  }

  // Adam: each value goes against the mean of its gradients, by the root of the mean of their squares.
  update({ values, grads }, means, squares, rate) {
    const [unbiased, unbiasedSquare] = [1 - BETA_1 ** this.steps, 1 - BETA_2 ** this.steps];
    for (let i = 0; i < values.length; i++) {
      means[i] += (1 - BETA_1) * (grads[i] - means[i]);
      squares[i] += (1 - BETA_2) * (grads[i] ** 2 - squares[i]);
      values[i] -= (rate * (means[i] / unbiased)) / (Math.sqrt(squares[i] / unbiasedSquare) + EPS);
    }
  }

  // How many of `words` greedy search reverses exactly: those whose every letter is the most probable
  // one after the letters before it, so that one forward pass tells.
  countRight(words) {
    const batch = reversalBatch(words),
      best = this.model.best(batch),
      { spans } = batch.targetIn;
    return words.filter((_, i) => {
      for (let row = spans[i]; row < spans[i + 1]; row++)
        if (best[row] !== batch.targetOut[row]) return false;
      return true;
    }).length;
  }

  // What greedy search says, letter by letter.
  answer(word) {
    const said = [];
    while (said.length <= LONGEST) {
      const next = this.model.best(batchOf([word], [said])).pop();
      if (next < FIRST_LETTER) break;
      said.push(next);
    }
    return said.slice(0, LONGEST);
  }

  // The weights of every head while the decoder is told the right answer:
  // attention[kind][layer][head][query] = one for each key.
  look(word) {
    const batch = reversalBatch([word]),
      { seen } = this.model.forward(new Tape(), batch),
      { N, h } = this.settings;
    const length = word.length + 1;
    const heads = ({ weights }) =>
      Array.from({ length: h }, (_, head) =>
        weights.slice(head * length, (head + 1) * length).map((row) => [...row]),
      );
    const layers = (stack, name) =>
      Array.from({ length: N }, (_, i) => heads(seen[`${stack}.layers.${i}.${name}`]));
    return {
      encoder: layers("encoder", "self_attention"),
      decoder: layers("decoder", "self_attention"),
      cross: layers("decoder", "cross_attention"),
    };
  }
}
