/* y = x W^T + bias + residual in float32 arithmetic, from weights as Hugging Face keeps them, for
 * processors with AVX2.
 *
 * An output is the sum over `in` in one order, rounded once. That order depends on nothing else: a
 * row has the same bits alone and among others, in any place of a block and with any number of
 * threads. The outputs are four parts of the weight that are read side by side, each from its
 * beginning to its end: four long streams are what prefetchers of processors follow best.
 */
#include <immintrin.h>
#include <stdlib.h>

#include "numbers.h"

#define STREAMS 4
#define MOST 3 /* rows of a block: 12 sums and a vector of weights stay in registers */

typedef struct { const void *w, *bias; long in, out; } Weight; /* [out, in]; [out] or null */
typedef struct { void *y; const void *residual; const float *x; } Rows; /* [rows, out or in] */

static inline long least(long a, long b) { return a < b ? a : b; }

static inline __m256 wide(const void *at, const int bf16) {
  if (!bf16) return _mm256_loadu_ps(at);
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at)), 16));
}

static inline float total(__m256 v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The outputs `o`, `o + part` ... of the rows from `row` on. */
static inline __attribute__((always_inline)) void block(
    const Weight *w, const Rows *p, long o, long part, long row, const int rows, const int bf16) {
  const int size = bf16 ? 2 : 4;
  const char *at[STREAMS];
  const float *x = p->x + row * w->in;
  __m256 sums[STREAMS][MOST];
  for (int j = 0; j < STREAMS; j++) {
    at[j] = (const char *)w->w + least(o + j * part, w->out - 1) * w->in * size;
    for (int r = 0; r < rows; r++) sums[j][r] = _mm256_setzero_ps();
  }
  long k = 0;
  for (; k + 8 <= w->in; k += 8)
    for (int j = 0; j < STREAMS; j++) {
      const __m256 v = wide(at[j] + k * size, bf16);
      for (int r = 0; r < rows; r++)
        sums[j][r] = _mm256_fmadd_ps(v, _mm256_loadu_ps(x + r * w->in + k), sums[j][r]);
    }
  if (k < w->in) /* the last inputs, filled up with 0 */
    for (int j = 0; j < STREAMS; j++) {
      float rest[8] = {0};
      memcpy(rest, at[j] + k * size, (w->in - k) * size);
      const __m256 v = wide(rest, bf16);
      for (int r = 0; r < rows; r++) {
        float last[8] = {0};
        memcpy(last, x + r * w->in + k, (w->in - k) * 4);
        sums[j][r] = _mm256_fmadd_ps(v, _mm256_loadu_ps(last), sums[j][r]);
      }
    }
  for (long j = 0, out = o; j < STREAMS && out < w->out; j++, out += part)
    for (int r = 0; r < rows; r++) {
      const long to = (row + r) * w->out + out;
      float y = total(sums[j][r]);
      if (w->bias) y += read(w->bias, out, bf16);
      if (p->residual) y += read(p->residual, to, bf16);
      put(p->y, to, y, bf16);
    }
}

static inline __attribute__((always_inline)) void multiply(
    const Weight *w, const Rows *p, long rows, const int bf16) {
  const long part = (w->out + STREAMS - 1) / STREAMS;
#pragma omp parallel for schedule(static) if (w->out >= 64)
  for (long o = 0; o < part; o++) {
    long row = 0;
    for (; row + 3 <= rows; row += 3) block(w, p, o, part, row, 3, bf16);
    if (row + 2 == rows) block(w, p, o, part, row, 2, bf16);
    if (row + 1 == rows) block(w, p, o, part, row, 1, bf16);
  }
}

void float32_rows(const Weight *w, void *y, const void *residual, const float *x, long rows) {
  const Rows here = {y, residual, x};
  multiply(w, &here, rows, 0);
}

void bfloat16_rows(const Weight *w, void *y, const void *residual, const uint16_t *x, long rows) {
  static _Thread_local float *room;
  static _Thread_local long size;
  const long count = rows * w->in;
  if (size < count) {
    free(room);
    size = count;
    room = malloc(size * sizeof(float));
  }
  for (long i = 0; i < count; i++) room[i] = read(x, i, 1);
  const Rows here = {y, residual, room};
  multiply(w, &here, rows, 1);
}
