// One product of matrices, which forward and backward share.

// C += A B for C (m x n), A (m x k) and B (k x n). C lies row by row; A and B lie as their steps say,
// to the next row and to the next column, so that a transposed matrix needs no copy. Four rows by
// four columns at a time stay in local variables: sixteen products for eight numbers read.
function addProduct(C, A, B, [m, n, k], [aRow, aColumn], [bRow, bColumn]) {
  const [mFours, nFours] = [m - (m % 4), n - (n % 4)];
  for (let i = 0; i < mFours; i += 4) {
    for (let j = 0; j < nFours; j += 4) addTile(C, A, B, n, k, i, j, aRow, aColumn, bRow, bColumn);
  }
  for (let i = 0; i < m; i++) {
    // what no tile covers
    for (let j = i < mFours ? nFours : 0; j < n; j++) {
      let sum = 0;
      for (let p = 0; p < k; p++) sum += A[i * aRow + p * aColumn] * B[p * bRow + j * bColumn];
      C[i * n + j] += sum;
    }
  }
}

function addTile(C, A, B, n, k, i, j, aRow, aColumn, bRow, bColumn) {
  let s00 = 0,
    s01 = 0,
    s02 = 0,
    s03 = 0,
    s10 = 0,
    s11 = 0,
    s12 = 0,
    s13 = 0;
  let s20 = 0,
    s21 = 0,
    s22 = 0,
    s23 = 0,
    s30 = 0,
    s31 = 0,
    s32 = 0,
    s33 = 0;
  let a = i * aRow,
    b = j * bColumn;
  for (let p = 0; p < k; p++) {
    const a0 = A[a],
      a1 = A[a + aRow],
      a2 = A[a + 2 * aRow],
      a3 = A[a + 3 * aRow];
    const b0 = B[b],
      b1 = B[b + bColumn],
      b2 = B[b + 2 * bColumn],
      b3 = B[b + 3 * bColumn];
    s00 += a0 * b0;
    s01 += a0 * b1;
    s02 += a0 * b2;
    s03 += a0 * b3;
    s10 += a1 * b0;
    s11 += a1 * b1;
    s12 += a1 * b2;
    s13 += a1 * b3;
    s20 += a2 * b0;
    s21 += a2 * b1;
    s22 += a2 * b2;
    s23 += a2 * b3;
    s30 += a3 * b0;
    s31 += a3 * b1;
    s32 += a3 * b2;
    s33 += a3 * b3;
    a += aColumn;
    b += bRow;
  }
  const c0 = i * n + j,
    c1 = c0 + n,
    c2 = c1 + n,
    c3 = c2 + n;
  C[c0] += s00;
  C[c0 + 1] += s01;
  C[c0 + 2] += s02;
  C[c0 + 3] += s03;
  C[c1] += s10;
  C[c1 + 1] += s11;
  C[c1 + 2] += s12;
  C[c1 + 3] += s13;
  C[c2] += s20;
  C[c2 + 1] += s21;
  C[c2 + 2] += s22;
  C[c2 + 3] += s23;
  C[c3] += s30;
  C[c3 + 1] += s31;
  C[c3 + 2] += s32;
  C[c3 + 3] += s33;
}
