/* y = x W^T + bias + residual from weights in 8 bits, one scale per output.
 *
 * A row of x becomes integers of up to 16 bits with one scale, as large as the sums allow: no sum
 * of 32 bits overflows. Integers add up alike in any order, so a row has the same bits alone and
 * among others, with any number of threads and with any kernel. The outputs are four parts of the
 * weight that are read side by side, as in few_rows_avx2.c.
 */
#include <immintrin.h>
#include <stdlib.h>

#include "numbers.h"

#define STREAMS 4
#define STEP 64 /* inputs of an output are filled up with 0 to a multiple of it */
#define MOST 2  /* rows of a block: its sums stay in registers */

typedef struct {
  const int8_t *w;           /* [out, in], filled up */
  const float *scale, *bias; /* [out]; [out] or null */
  long in, out, most;        /* inputs and outputs; largest magnitude of a row as integers */
  int bf16;                  /* x, residual and y are bfloat16, otherwise float32 */
} Weight;

typedef struct { float *sums; const int16_t *x; const float *scales; } Rows; /* one scale per row */

/* Writes the sums of the outputs `o`, `o + part` ... of up to MOST rows, with `width` inputs. */
typedef void Block(const Weight *w, Rows p, long width, long o, long part, int rows);

#define KERNEL(NAME, TARGET, VECTOR, LANES, ZERO, WEIGHTS, INPUTS, DOT, HALF)                      \
  __attribute__((target(TARGET), always_inline)) static inline void NAME##_rows(                   \
      const Weight *w, Rows p, long width, long o, long part, const int rows) {                    \
    const int8_t *at[STREAMS];                                                                     \
    VECTOR sums[STREAMS][MOST];                                                                    \
    for (int j = 0; j < STREAMS; j++) {                                                            \
      const long out = o + j * part;                                                               \
      at[j] = w->w + (out < w->out ? out : w->out - 1) * width;                                    \
      for (int r = 0; r < rows; r++) sums[j][r] = ZERO();                                          \
    }                                                                                              \
    for (long k = 0; k < width; k += LANES)                                                        \
      for (int j = 0; j < STREAMS; j++) {                                                          \
        const VECTOR v = WEIGHTS(at[j] + k);                                                       \
        for (int r = 0; r < rows; r++)                                                             \
          sums[j][r] = DOT(sums[j][r], v, INPUTS(p.x + r * width + k));                            \
      }                                                                                            \
    for (int r = 0; r < rows; r++) {                                                               \
      const __m256i low = _mm256_hadd_epi32(HALF(sums[0][r]), HALF(sums[1][r]));                   \
      const __m256i high = _mm256_hadd_epi32(HALF(sums[2][r]), HALF(sums[3][r]));                  \
      const __m256i all = _mm256_hadd_epi32(low, high);                                            \
      const __m128i upper = _mm256_extracti128_si256(all, 1);                                      \
      float four[STREAMS];                                                                         \
      _mm_storeu_ps(four, _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(all), upper)));     \
      for (long j = 0, out = o; j < STREAMS && out < w->out; j++, out += part)                     \
        p.sums[r * w->out + out] = four[j] * (w->scale[out] * p.scales[r]);                        \
    }                                                                                              \
  }                                                                                                \
  __attribute__((target(TARGET))) static void NAME(const Weight *w, Rows p, long width, long o,    \
                                                   long part, int rows) {                          \
    if (rows == 2) NAME##_rows(w, p, width, o, part, 2);                                           \
    else NAME##_rows(w, p, width, o, part, 1);                                                     \
  }

#define WEIGHTS_256(p) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p)))
#define INPUTS_256(p) _mm256_loadu_si256((const __m256i *)(p))
#define DOT_256(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#define SAME(v) (v)
KERNEL(avx2, "avx2", __m256i, 16, _mm256_setzero_si256, WEIGHTS_256, INPUTS_256, DOT_256, SAME)

#define WEIGHTS_512(p) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(p)))
#define HALF_512(v)                                                                                \
  _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1))
KERNEL(avx512, "avx512f,avx512bw,avx512vnni", __m512i, 32, _mm512_setzero_si512, WEIGHTS_512,
       _mm512_loadu_si512, _mm512_dpwssd_epi32, HALF_512)

/* Writes one row as integers and gives its scale, which is not finite where the row is not. What
 * lies behind a row meets weights of 0. */
static float quantised(int16_t *to, const void *x, long row, const Weight *w, const int bf16) {
  uint32_t largest = 0; /* the bits of magnitudes have their order, NaN above all */
  for (long i = row * w->in; i < (row + 1) * w->in; i++) {
    const float value = read(x, i, bf16);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float magnitude;
  memcpy(&magnitude, &largest, 4);
  const float times = magnitude > 1e-30f ? (float)w->most / magnitude : 0;
  for (long i = 0; i < w->in; i++) {
    const float rounded = read(x, row * w->in + i, bf16) * times + 0x1.8p23f;
    uint32_t bits;
    memcpy(&bits, &rounded, 4);
    to[i] = (int16_t)bits;
  }
  return magnitude / (float)w->most;
}

/* y [rows, out] = sums + bias + residual, rounded once. */
static void finish(const Weight *w, void *y, const float *sums, const void *residual, long rows,
                   const int bf16) {
  for (long row = 0; row < rows; row++)
    for (long o = 0; o < w->out; o++) {
      float value = sums[row * w->out + o];
      if (w->bias) value += w->bias[o];
      if (residual) value += read(residual, row * w->out + o, bf16);
      put(y, row * w->out + o, value, bf16);
    }
}

static void multiply(const Weight *w, void *y, const void *residual, const void *x, long rows,
                     Block *block) {
  static _Thread_local int16_t *room;
  static _Thread_local long size;
  const long width = (w->in + STEP - 1) / STEP * STEP, part = (w->out + STREAMS - 1) / STREAMS;
  const long bytes = rows * (2 * width + 4 + (w->bf16 ? 4 * w->out : 0));
  if (size < bytes) {
    free(room);
    size = bytes;
    room = aligned_alloc(64, (size + 63) / 64 * 64);
  }
  float *const scales = (float *)(room + rows * width), *const sums = w->bf16 ? scales + rows : y;
  const Rows all = {sums, room, scales};
  for (long row = 0; row < rows; row++)
    scales[row] = w->bf16 ? quantised(room + row * width, x, row, w, 1)
                          : quantised(room + row * width, x, row, w, 0);
#pragma omp parallel for schedule(static) if (w->out >= 64)
  for (long o = 0; o < part; o++)
    for (long row = 0; row < rows; row += MOST) {
      const Rows p = {all.sums + row * w->out, all.x + row * width, all.scales + row};
      block(w, p, width, o, part, rows - row < MOST ? 1 : MOST);
    }
  if (w->bf16) finish(w, y, sums, residual, rows, 1);
  else if (w->bias || residual) finish(w, y, sums, residual, rows, 0);
}

void int8_avx2(const Weight *w, void *y, const void *residual, const void *x, long rows) {
  multiply(w, y, residual, x, rows, avx2);
}

void int8_avx512(const Weight *w, void *y, const void *residual, const void *x, long rows) {
  multiply(w, y, residual, x, rows, avx512);
}
