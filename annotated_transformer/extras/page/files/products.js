// Products with 8-bit weights: exact integers, in WebAssembly or in JavaScript.
//
// Weights are rounded to 8 bits, the rows that meet them to 12, and the products of the two are
// integers that are added up exactly: `annotated_transformer/extras/page/int8_rows.py` computes the
// same ones in Python.

const STEPS = 2047; // a row is rounded to the integers from -2047 to 2047
const ROWS = 16; // as many rows meet the weights at a time
const FIRST_BYTE = 65536; // of our numbers; what is below is the compiler's

// kernels.c's function on this memory; null without SIMD, or where the page's server forbids to compile.
function compiled(kernels, memory) {
  try {
    return new WebAssembly.Instance(new WebAssembly.Module(kernels), { env: { memory } }).exports
      .products;
  } catch {
    return null;
  }
}

class Matrices {
  // All matrices of 8-bit weights in one memory, and the products of rows with them: in
  // WebAssembly (kernels.c) or, if `useWasm` is false or there is no SIMD, in JavaScript.
  constructor(kernels, matrices, useWasm) {
    const wide = (n) => 16 * Math.ceil(n / 16); // both sides of a product are padded with 0
    const [widest, longest] = ["nIn", "nOut"].map((side) =>
      Math.max(...matrices.map((m) => m[side])),
    );
    let size = FIRST_BYTE;
    for (const matrix of matrices) {
      matrix.start = size;
      size += wide(matrix.nOut * wide(matrix.nIn));
    }
    this.rowsStart = size;
    this.outStart = size + ROWS * wide(widest) * 2;
    const nPages = Math.ceil((this.outStart + ROWS * longest * 4 + 16) / 65536);
    const hasSimd = useWasm && typeof WebAssembly === "object" && WebAssembly.validate(kernels);
    const memory = hasSimd ? new WebAssembly.Memory({ initial: nPages }) : null;
    const buffer = memory ? memory.buffer : new ArrayBuffer(nPages * 65536);
    this.weights = new Int8Array(buffer);
    this.rows = new Int16Array(buffer, this.rowsStart, ROWS * wide(widest));
    this.out = new Int32Array(buffer, this.outStart, ROWS * longest + 4);
    for (const { start, values, nIn, nOut } of matrices) {
      for (let o = 0; o < nOut; o++) {
        this.weights.set(values.subarray(o * nIn, (o + 1) * nIn), start + o * wide(nIn));
      }
    }
    this.products = memory && compiled(kernels, memory);
    this.isWasm = Boolean(this.products);
  }

  // x W^T + b for each of the rows: each is q m / STEPS, with integers q and its largest entry m.
  linear(matrix, x) {
    const { nIn, nOut, scales, bias } = matrix,
      wide = 16 * Math.ceil(nIn / 16);
    const nRows = x.length / nIn,
      y = new Float64Array(nRows * nOut),
      largest = new Float64Array(ROWS);
    for (let first = 0; first < nRows; first += ROWS) {
      const n = Math.min(ROWS, nRows - first);
      for (let r = 0; r < n; r++) {
        const row = x.subarray((first + r) * nIn, (first + r + 1) * nIn);
        let m = 0;
        for (let i = 0; i < nIn; i++) m = Math.max(m, Math.abs(row[i]));
        const factor = m ? STEPS / m : 0;
        for (let i = 0; i < nIn; i++) this.rows[r * wide + i] = Math.floor(row[i] * factor + 0.5);
        this.rows.fill(0, r * wide + nIn, (r + 1) * wide);
        largest[r] = m;
      }
      if (this.isWasm) this.products(matrix.start, this.rowsStart, this.outStart, nOut, wide, n);
      else this.plainProducts(matrix.start, nOut, wide, n);
      for (let r = 0; r < n; r++) {
        const scale = largest[r] / STEPS,
          start = (first + r) * nOut;
        for (let o = 0; o < nOut; o++) {
          y[start + o] = this.out[r * nOut + o] * scale * scales[o] + (bias ? bias[o] : 0);
        }
      }
    }
    return y;
  }

  // What kernels.c does, in numbers of 64 bits, in which integers are as exact: four rows at a time,
  // then those that are left.
  plainProducts(start, nOut, nIn, nRows) {
    let first = 0;
    for (; first + 4 <= nRows; first += 4) this.fourRows(start, nOut, nIn, first);
    for (; first < nRows; first++) this.oneRow(start, nOut, nIn, first);
  }

  // Rows first to first + 3, value beside value, meet two rows of weights at a time, so that a weight
  // is read once for all of them.
  fourRows(start, nOut, nIn, first) {
    const { weights, rows, out } = this,
      x = new Float64Array(4 * nIn);
    for (let r = 0; r < 4; r++)
      for (let i = 0; i < nIn; i++) x[4 * i + r] = rows[(first + r) * nIn + i];
    for (let o = 0; o < nOut; o += 2) {
      const w = start + o * nIn,
        w_2 = w + nIn;
      let a = 0,
        b = 0,
        c = 0,
        d = 0,
        a_2 = 0,
        b_2 = 0,
        c_2 = 0,
        d_2 = 0;
      for (let i = 0; i < nIn; i++) {
        const weight = weights[w + i],
          weight_2 = weights[w_2 + i],
          place = 4 * i;
        const x_a = x[place],
          x_b = x[place + 1],
          x_c = x[place + 2],
          x_d = x[place + 3];
        a += weight * x_a;
        b += weight * x_b;
        c += weight * x_c;
        d += weight * x_d;
        a_2 += weight_2 * x_a;
        b_2 += weight_2 * x_b;
        c_2 += weight_2 * x_c;
        d_2 += weight_2 * x_d;
      }
      [a, b, c, d].forEach((sum, r) => {
        out[(first + r) * nOut + o] = sum;
      });
      if (o + 1 < nOut)
        [a_2, b_2, c_2, d_2].forEach((sum, r) => {
          out[(first + r) * nOut + o + 1] = sum;
        });
    }
  }

  // Row r meets four rows of weights at a time. Where fewer are left, what stands behind them is
  // multiplied too, and its sums fall where the next row's first sums will be written, or behind the last.
  oneRow(start, nOut, nIn, r) {
    const { weights, rows, out } = this,
      row = new Float64Array(nIn);
    for (let i = 0; i < nIn; i++) row[i] = rows[r * nIn + i];
    for (let o = 0; o < nOut; o += 4) {
      const w = start + o * nIn,
        w_2 = w + nIn,
        w_3 = w_2 + nIn,
        w_4 = w_3 + nIn;
      let sum = 0,
        sum_2 = 0,
        sum_3 = 0,
        sum_4 = 0;
      for (let i = 0; i < nIn; i++) {
        const x = row[i];
        sum += weights[w + i] * x;
        sum_2 += weights[w_2 + i] * x;
        sum_3 += weights[w_3 + i] * x;
        sum_4 += weights[w_4 + i] * x;
      }
      const place = r * nOut + o;
      out[place] = sum;
      out[place + 1] = sum_2;
      out[place + 2] = sum_3;
      out[place + 3] = sum_4;
    }
  }
}
