/* Norms, rotations and silu, each in one call: one row takes longer in torch's calls than its
 * arithmetic. They round where torch's kernels do; no row depends on another one.
 */
#include "vec.h"

/* y [rows, width] = x / sqrt(mean of x^2 + eps) * w */
INLINE void rms_norm(void *y, const void *x, const void *w, float eps, long rows, long width,
                     const int bf16) {
  for (long from = 0; from < rows * width; from += width) {
    Vec squares = V(setzero_ps)();
    for (long i = 0; i < width; i += LANES) {
      const Vec v = load(x, from + i, width - i, bf16);
      squares = V(fmadd_ps)(v, v, squares);
    }
    const float sum = total(squares), norm = sqrtf(sum), share = (float)(1.0 / (double)width);
    const float mean = LANES == 16 ? fmaf(share * norm, norm, eps) : sum / (float)width + eps;
    const Vec scale = V(set1_ps)(1 / sqrtf(mean));
    for (long i = 0; i < width; i += LANES) {
      const Vec v = load(x, from + i, width - i, bf16) * scale;
      store(y, from + i, width - i, v * load(w, i, width - i, bf16), bf16);
    }
  }
}

/* y [rows, width] = silu(gate) * up of gate_up [rows, 2 width] */
INLINE void silu_times(void *y, const void *gate_up, long rows, long width, const int bf16) {
  for (long row = 0; row < rows; row++)
    for (long i = 0; i < width; i += LANES) {
      const Vec gate = load(gate_up, 2 * row * width + i, width - i, bf16);
      const Vec up = load(gate_up, (2 * row + 1) * width + i, width - i, bf16);
      store(y, row * width + i, width - i, silu_times_up(gate, up, bf16), bf16);
    }
}

/* Rotary positions of queries and keys, and what goes to the cache.
 *
 * qkv [rows, heads + 2 kv, d]; cos, sin [rows, d], the sine with the sign of `rotate_half`;
 * query [rows, heads, d] and cache [rows, 2 kv, d] are written.
 */
INLINE void rotate(void *query, void *cache, const void *qkv, const void *cos, const void *sin,
                   long rows, long heads, long kv, long d, const int bf16) {
  const long half = d / 2;
  for (long row = 0; row < rows; row++) {
    const long from = row * (heads + 2 * kv) * d, angle = row * d;
    for (long head = 0; head < heads + kv; head++) {
      void *to = head < heads ? query : cache;
      const long at = from + head * d;
      const long out = head < heads ? (row * heads + head) * d : (2 * row * kv + head - heads) * d;
      for (long i = 0; i < half; i += LANES) {
        const long n = half - i;
        const Vec low = load(qkv, at + i, n, bf16), high = load(qkv, at + half + i, n, bf16);
        const Vec a = rounded(low * load(cos, angle + i, n, bf16), bf16);
        const Vec b = rounded(high * load(cos, angle + half + i, n, bf16), bf16);
        const Vec s = load(sin, angle + i, n, bf16), t = load(sin, angle + half + i, n, bf16);
        store(to, out + i, n, V(fmadd_ps)(high, s, a), bf16);
        store(to, out + half + i, n, V(fmadd_ps)(low, t, b), bf16);
      }
    }
    memcpy((void *)place(cache, (2 * row + 1) * kv * d, bf16),
           place(qkv, from + (heads + kv) * d, bf16), kv * d * (bf16 ? 2 : 4));
  }
}

DTYPES(rms_norm, (void *y, const void *x, const void *w, float eps, long rows, long width), y, x, w, eps,
       rows, width)
DTYPES(silu_times, (void *y, const void *gate_up, long rows, long width), y, gate_up, rows, width)
DTYPES(rotate,
       (void *query, void *cache, const void *qkv, const void *cos, const void *sin, long rows,
        long heads, long kv, long d),
       query, cache, qkv, cos, sin, rows, heads, kv, d)
