/* The products of the page's model: many rows of 8-bit weights by a few rows of numbers.

   WebAssembly's SIMD has 128 bits, which hold eight numbers of 16 bits. `dot` multiplies eight of
   them by eight others, exactly, and adds neighbours into four sums of 32 bits. So weights are
   widened from 8 bits to 16 on their way, and the rows may as well have 12 bits: that costs no
   time. No sum of products reaches 2^31, hence their order does not matter, and products.js,
   which multiplies where SIMD is missing, finds the same integers.

   Built by `python -m tools.kernels`, which has the command; the result is kernels.wasm. */

#include <stdint.h>
#include <wasm_simd128.h>

/* out[r][o] = sum_i weights[o][i] rows[r][i]. n_in is a multiple of 16: both are padded with 0. */
__attribute__((export_name("products")))
void products(const int8_t *weights, const int16_t *rows, int32_t *out, int n_out, int n_in,
              int n_rows) {
  for (int o = 0; o < n_out; o++, weights += n_in) {
    const int16_t *row = rows;
    for (int r = 0; r < n_rows; r++, row += n_in) {
      v128_t sum = wasm_i32x4_const(0, 0, 0, 0), sum_2 = sum;
      for (int i = 0; i < n_in; i += 16) {
        v128_t w = wasm_v128_load(weights + i);
        v128_t low = wasm_i16x8_extend_low_i8x16(w), high = wasm_i16x8_extend_high_i8x16(w);
        sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(low, wasm_v128_load(row + i)));
        sum_2 = wasm_i32x4_add(sum_2, wasm_i32x4_dot_i16x8(high, wasm_v128_load(row + i + 8)));
      }
      sum = wasm_i32x4_add(sum, sum_2);
      out[r * n_out + o] = wasm_i32x4_extract_lane(sum, 0) + wasm_i32x4_extract_lane(sum, 1) +
                           wasm_i32x4_extract_lane(sum, 2) + wasm_i32x4_extract_lane(sum, 3);
    }
  }
}
