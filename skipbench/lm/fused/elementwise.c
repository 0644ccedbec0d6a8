/* Norms, rotations and silu in bfloat16, each in one call: one row takes longer in torch's calls
 * than its arithmetic. They round where torch's kernels do; no row depends on another one.
 */
#include <math.h>
#include <string.h>

#include "avx512.h"

/* y [rows, width] = x / sqrt(mean of x^2 + eps) * w */
void rms_norm(bf16 *y, const bf16 *x, const bf16 *w, float eps, long rows, long width) {
  for (; rows--; x += width, y += width) {
    __m512 squares = _mm512_setzero_ps();
    float lanes[16], sum = 0;
    for (long i = 0; i < width; i += 16) {
      __m512 v = wide(x + i, first(width - i));
      squares = _mm512_fmadd_ps(v, v, squares);
    }
    _mm512_storeu_ps(lanes, squares);
    for (int i = 0; i < 16; i++) sum += lanes[i];
    const float norm = sqrtf(sum), share = (float)(1.0 / (double)width);
    const __m512 scale = _mm512_set1_ps(1 / sqrtf(fmaf(share * norm, norm, eps)));
    for (long i = 0; i < width; i += 16) {
      __mmask16 mask = first(width - i);
      store(y + i, _mm512_mul_ps(_mm512_mul_ps(wide(x + i, mask), scale), wide(w + i, mask)), mask);
    }
  }
}

/* y [rows, width] = silu(gate) * up of gate_up [rows, 2 width] */
void silu_times(bf16 *y, const bf16 *gate_up, long rows, long width) {
  for (; rows--; gate_up += 2 * width, y += width)
    for (long i = 0; i < width; i += 16) {
      const __mmask16 mask = first(width - i);
      store(y + i, silu_times_up(wide(gate_up + i, mask), wide(gate_up + width + i, mask)), mask);
    }
}

/* Rotary positions of queries and keys, and what goes to the cache.
 *
 * qkv [rows, heads + 2 kv, d]; cos, sin [rows, d], the sine with the sign of `rotate_half`;
 * query [rows, heads, d] and cache [rows, 2 kv, d] are written.
 */
void rotate(bf16 *query, bf16 *cache, const bf16 *qkv, const bf16 *cos, const bf16 *sin, long rows,
            long heads, long kv, long d) {
  const long half = d / 2;
  for (; rows--; cos += d, sin += d, qkv += kv * d, cache += kv * d) {
    for (long head = 0; head < heads + kv; head++, qkv += d) {
      bf16 *to = head < heads ? query : cache;
      for (long i = 0; i < half; i += 16) {
        __mmask16 mask = first(half - i);
        __m512 low = wide(qkv + i, mask), high = wide(qkv + half + i, mask);
        __m512 a = rounded(_mm512_mul_ps(low, wide(cos + i, mask)));
        __m512 b = rounded(_mm512_mul_ps(high, wide(cos + half + i, mask)));
        store(to + i, _mm512_fmadd_ps(high, wide(sin + i, mask), a), mask);
        store(to + half + i, _mm512_fmadd_ps(low, wide(sin + half + i, mask), b), mask);
      }
      if (head < heads) query += d;
      else cache += d;
    }
    memcpy(cache, qkv, kv * d * sizeof(bf16));
  }
}
