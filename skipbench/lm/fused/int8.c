/* y = x W^T + bias + residual from weights in 8 bits, one scale per output.
 *
 * A row of x becomes integers of up to 16 bits with one scale, as large as the sums allow: no sum
 * of 32 bits overflows. Integers add up alike in any order, so a row has the same bits alone and
 * among others, with any number of threads and with any kernel.
 */
#include <immintrin.h>
#include <stdlib.h>

#include "numbers.h"

#define STEP 64    /* inputs of one output that lie side by side */
#define AHEAD 4096 /* bytes from what is read to what is prefetched */

typedef struct {
  const int8_t *w;           /* [out / 4, in / STEP, 4, STEP], filled up with 0 */
  const float *scale, *bias; /* [out]; [out] or null */
  long in, out, most;        /* inputs and outputs; largest magnitude of a row as integers */
  int bf16;                  /* x, residual and y are bfloat16, otherwise float32 */
} Weight;

/* Sums of 4 outputs of 4 rows or of one; rows of x are `steps * STEP` apart. */
typedef void Dot(int32_t sums[4][4], const int8_t *w, const int16_t *x, long steps, int rows);

#define KERNEL(NAME, TARGET, VECTOR, LANES, ZERO, WEIGHTS, INPUTS, DOT, STORE)                     \
  __attribute__((target(TARGET), always_inline)) static inline void NAME##_rows(                   \
      int32_t sums[4][4], const int8_t *w, const int16_t *x, long steps, const int rows) {         \
    VECTOR acc[4][4];                                                                              \
    for (int j = 0; j < 4; j++)                                                                    \
      for (int r = 0; r < rows; r++) acc[j][r] = ZERO();                                           \
    for (long k = 0; k < steps; k++, w += 4 * STEP)                                                \
      for (int j = 0; j < 4; j++) {                                                                \
        _mm_prefetch((const char *)w + j * STEP + AHEAD, _MM_HINT_T0);                             \
        for (int i = 0; i < STEP; i += LANES) {                                                    \
          VECTOR v = WEIGHTS(w + j * STEP + i);                                                    \
          for (int r = 0; r < rows; r++)                                                           \
            acc[j][r] = DOT(acc[j][r], v, INPUTS(x + (r * steps + k) * STEP + i));                 \
        }                                                                                          \
      }                                                                                            \
    for (int j = 0; j < 4; j++)                                                                    \
      for (int r = 0; r < rows; r++) {                                                             \
        uint32_t lanes[LANES / 2], sum = 0;                                                        \
        STORE(lanes, acc[j][r]);                                                                   \
        for (int i = 0; i < LANES / 2; i++) sum += lanes[i];                                       \
        sums[r][j] = (int32_t)sum;                                                                 \
      }                                                                                            \
  }                                                                                                \
  __attribute__((target(TARGET))) static void NAME(int32_t sums[4][4], const int8_t *w,            \
                                                   const int16_t *x, long steps, int rows) {       \
    if (rows == 4) NAME##_rows(sums, w, x, steps, 4);                                              \
    else NAME##_rows(sums, w, x, steps, 1);                                                        \
  }

#define WEIGHTS_256(p) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p)))
#define INPUTS_256(p) _mm256_loadu_si256((const __m256i *)(p))
#define DOT_256(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#define STORE_256(p, v) _mm256_storeu_si256((__m256i *)(p), v)
KERNEL(avx2, "avx2", __m256i, 16, _mm256_setzero_si256, WEIGHTS_256, INPUTS_256, DOT_256, STORE_256)

#define WEIGHTS_512(p) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(p)))
KERNEL(avx512, "avx512f,avx512bw,avx512vnni", __m512i, 32, _mm512_setzero_si512, WEIGHTS_512,
       _mm512_loadu_si512, _mm512_dpwssd_epi32, _mm512_storeu_si512)

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

static void multiply(const Weight *w, void *y, const void *residual, const void *x, long rows,
                     Dot *dot) {
  static _Thread_local int16_t *room;
  static _Thread_local long size;
  const long steps = (w->in + STEP - 1) / STEP, padded = steps * STEP, bytes = 2 * padded + 4;
  if (size < rows * bytes) {
    free(room);
    size = rows * bytes;
    room = aligned_alloc(64, (size + 63) / 64 * 64);
  }
  int16_t *const ints = room;
  float *const scales = (float *)(ints + rows * padded);
  for (long row = 0; row < rows; row++)
    scales[row] = w->bf16 ? quantised(ints + row * padded, x, row, w, 1)
                          : quantised(ints + row * padded, x, row, w, 0);
#pragma omp parallel for schedule(static) if (w->out >= 64)
  for (long o = 0; o < w->out; o += 4) {
    int32_t sums[4][4];
    for (long row = 0, count; row < rows; row += count) {
      count = rows - row >= 4 ? 4 : 1;
      dot(sums, w->w + o * padded, ints + row * padded, steps, (int)count);
      for (long r = 0; r < count; r++)
        for (long j = 0; j < 4 && o + j < w->out; j++) {
          const long at = (row + r) * w->out + o + j;
          float value = (float)sums[r][j] * (w->scale[o + j] * scales[row + r]);
          if (w->bias) value += w->bias[o + j];
          if (residual) value += read(residual, at, w->bf16);
          put(y, at, value, w->bf16);
        }
    }
  }
}

void int8_avx2(const Weight *w, void *y, const void *residual, const void *x, long rows) {
  multiply(w, y, residual, x, rows, avx2);
}

void int8_avx512(const Weight *w, void *y, const void *residual, const void *x, long rows) {
  multiply(w, y, residual, x, rows, avx512);
}
