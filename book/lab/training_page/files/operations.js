// What the model is made of, forward and backward. Each operation leaves on the tape how a change of
// its result is a change of what it was made from; `Tape.backward` plays them from the last to the
// first (the chain rule). All numbers are of 64 bits.

class Tensor {
  constructor(rows, columns) {
    Object.assign(this, { rows, columns, values: new Float64Array(rows * columns), grads: null });
  }

  // The gradient of the loss in each value: zero until somebody adds to it.
  grad() {
    return (this.grads ??= new Float64Array(this.values.length));
  }
}

class Tape {
  constructor() {
    this.steps = [];
  }

  // A new tensor; `backward` is called with its gradient.
  result(rows, columns, backward) {
    const tensor = new Tensor(rows, columns);
    this.steps.push(() => backward(tensor.grad()));
    return tensor;
  }

  backward() {
    for (let i = this.steps.length - 1; i >= 0; i--) this.steps[i]();
  }

  // E[ids] * sqrt(d_model) + positions (sections 3.4 and 3.5).
  embed(E, ids, positions, table) {
    const width = E.columns,
      scale = Math.sqrt(width);
    const out = this.result(ids.length, width, (grad) => {
      const gradE = E.grad();
      ids.forEach((id, row) => {
        for (let c = 0; c < width; c++) gradE[id * width + c] += scale * grad[row * width + c];
      });
    });
    ids.forEach((id, row) => {
      for (let c = 0; c < width; c++) {
        out.values[row * width + c] =
          scale * E.values[id * width + c] + table[positions[row] * width + c];
      }
    });
    return out;
  }

  // x W^T + b; W lies as PyTorch has it, a row for each column of the result.
  linear(x, W, b = null) {
    const [rows, nIn, nOut] = [x.rows, x.columns, W.rows];
    const out = this.result(rows, nOut, (grad) => {
      addProduct(x.grad(), grad, W.values, [rows, nIn, nOut], [nOut, 1], [nIn, 1]);
      addProduct(W.grad(), grad, x.values, [nOut, nIn, rows], [1, nOut], [nIn, 1]);
      if (b) addRows(b.grad(), grad);
    });
    addProduct(out.values, x.values, W.values, [rows, nOut, nIn], [nIn, 1], [1, nIn]);
    if (b) for (let i = 0; i < out.values.length; i++) out.values[i] += b.values[i % nOut];
    return out;
  }

  // max(0, x) (equation 2).
  relu(x) {
    const out = this.result(x.rows, x.columns, (grad) => {
      const gradX = x.grad();
      for (let i = 0; i < grad.length; i++) if (x.values[i] > 0) gradX[i] += grad[i];
    });
    for (let i = 0; i < out.values.length; i++) out.values[i] = Math.max(0, x.values[i]);
    return out;
  }

  // LayerNorm(x + y): the residual connection round every sub-layer (section 3.1).
  addNorm(x, y, gain, bias) {
    const width = x.columns,
      scaled = new Float64Array(x.values.length),
      factors = new Float64Array(x.rows);
    const out = this.result(x.rows, width, (grad) => {
      for (let row = 0; row < x.rows; row++) {
        normBackward(grad, scaled, factors[row], row * width, width, gain, bias, [
          x.grad(),
          y.grad(),
        ]);
      }
    });
    for (let row = 0; row < x.rows; row++) {
      const start = row * width;
      let mean = 0,
        variance = 0;
      for (let c = start; c < start + width; c++) mean += x.values[c] + y.values[c];
      mean /= width;
      for (let c = start; c < start + width; c++) {
        scaled[c] = x.values[c] + y.values[c] - mean;
        variance += scaled[c] ** 2;
      }
      factors[row] = 1 / Math.sqrt(variance / width + 1e-5);
      for (let c = 0; c < width; c++) {
        scaled[start + c] *= factors[row];
        out.values[start + c] = scaled[start + c] * gain.values[c] + bias.values[c];
      }
    }
    return out;
  }

  // softmax(Q K^T / sqrt(d_k)) V of every head, for every sentence (equation 1). `queries` and
  // `keys` are the first rows of the sentences; if `causal`, query i sees keys 0 to i. The
  // result's `weights` are what `forEachQuery` numbers.
  attention(q, k, v, { queries, keys, h, causal = false }) {
    const width = q.columns,
      d_k = width / h,
      scale = 1 / Math.sqrt(d_k),
      weights = [];
    const walk = (visit) => forEachQuery(queries, keys, h, causal, visit);
    const out = this.result(q.rows, width, (grad) => {
      const [gradQ, gradK, gradV] = [q.grad(), k.grad(), v.grad()];
      walk((number, query, head, first, last) => {
        const p = weights[number],
          from = query * width + head * d_k,
          gradP = new Float64Array(p.length);
        let mean = 0;
        for (let key = first; key < last; key++) {
          const at = key * width + head * d_k;
          let sum = 0;
          for (let c = 0; c < d_k; c++) {
            sum += grad[from + c] * v.values[at + c];
            gradV[at + c] += p[key - first] * grad[from + c];
          }
          gradP[key - first] = sum;
          mean += sum * p[key - first];
        }
        for (let key = first; key < last; key++) {
          // through the softmax, to the scores
          const at = key * width + head * d_k,
            change = scale * p[key - first] * (gradP[key - first] - mean);
          for (let c = 0; c < d_k; c++) {
            gradQ[from + c] += change * k.values[at + c];
            gradK[at + c] += change * q.values[from + c];
          }
        }
      });
    });
    walk((number, query, head, first, last) => {
      const p = (weights[number] = new Float64Array(last - first)),
        from = query * width + head * d_k;
      for (let key = first; key < last; key++) {
        const at = key * width + head * d_k;
        for (let c = 0; c < d_k; c++)
          p[key - first] += scale * q.values[from + c] * k.values[at + c];
      }
      softmax(p, 0, p.length);
      for (let key = first; key < last; key++) {
        const at = key * width + head * d_k;
        for (let c = 0; c < d_k; c++) out.values[from + c] += p[key - first] * v.values[at + c];
      }
    });
    out.weights = weights;
    return out;
  }

  // The mean of -log P(target), in nats; its gradient is softmax(logits) - onehot(target), by the
  // number of targets.
  crossEntropy(logits, targets) {
    const [p, width] = [Float64Array.from(logits.values), logits.columns];
    let loss = 0;
    targets.forEach((target, row) => {
      softmax(p, row * width, (row + 1) * width);
      loss -= Math.log(p[row * width + target]);
    });
    this.steps.push(() => {
      const grad = logits.grad();
      targets.forEach((target, row) => {
        p[row * width + target] -= 1;
      });
      for (let i = 0; i < p.length; i++) grad[i] += p[i] / targets.length;
    });
    return loss / targets.length;
  }
}

// The sum of all rows, for a bias.
function addRows(sums, grad) {
  for (let i = 0; i < grad.length; i++) sums[i % sums.length] += grad[i];
}

// The gradient of one row of a LayerNorm: that of its gain and bias, and that of the row itself,
// which both summands get.
function normBackward(grad, scaled, factor, start, width, gain, bias, summands) {
  const [gradGain, gradBias] = [gain.grad(), bias.grad()];
  let mean = 0,
    meanScaled = 0;
  for (let c = 0; c < width; c++) {
    const change = grad[start + c] * gain.values[c];
    gradGain[c] += grad[start + c] * scaled[start + c];
    gradBias[c] += grad[start + c];
    mean += change / width;
    meanScaled += (change * scaled[start + c]) / width;
  }
  for (let c = 0; c < width; c++) {
    const change =
      factor * (grad[start + c] * gain.values[c] - mean - scaled[start + c] * meanScaled);
    for (const summand of summands) summand[start + c] += change;
  }
}

// Each query of each head with the keys that it may see: visit(number, query, head, first key, end).
function forEachQuery(queries, keys, h, causal, visit) {
  let number = 0;
  for (let sentence = 0; sentence + 1 < queries.length; sentence++) {
    const [first, end] = [keys[sentence], keys[sentence + 1]];
    for (let head = 0; head < h; head++) {
      for (let query = queries[sentence]; query < queries[sentence + 1]; query++) {
        visit(number++, query, head, first, causal ? query + 1 : end);
      }
    }
  }
}

// exp(x) / sum of exp(x), of the numbers from `first` on, in their place.
function softmax(numbers, first, end) {
  let largest = -Infinity,
    total = 0;
  for (let i = first; i < end; i++) largest = Math.max(largest, numbers[i]);
  for (let i = first; i < end; i++) total += numbers[i] = Math.exp(numbers[i] - largest);
  for (let i = first; i < end; i++) numbers[i] /= total;
}
