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
#define STEP 16 /* inputs that are read at once */
#define MOST 3  /* rows of a block: sums, inputs and a vector of weights stay in registers */

typedef struct { const void *w, *bias; long in, out; } Weight; /* [out, in]; [out] or null */

static inline long padded(long in) { return (in + STEP - 1) / STEP * STEP; }

/* Half of STEP weights: of bfloat16 those in even places, or those in odd ones. */
static inline __attribute__((always_inline)) __m256 wide(
    const void *at, const int half, const int bf16) {
  if (!bf16) return _mm256_loadu_ps((const float *)at + 8 * half);
  const __m256i both = _mm256_loadu_si256(at), odd = _mm256_set1_epi32((int)0xffff0000);
  return _mm256_castsi256_ps(half ? _mm256_and_si256(both, odd) : _mm256_slli_epi32(both, 16));
}

/* A row of x as float32 in the order of `wide`, filled up with 0. */
static inline __attribute__((always_inline)) void spread(
    float *to, const void *x, long row, long in, const int bf16) {
  const long size = bf16 ? 2 : 4;
  const char *from = (const char *)x + row * in * size;
  for (long i = 0; i < in; i += STEP) {
    float rest[STEP] = {0};
    const void *at = from + i * size;
    if (in - i < STEP) at = memcpy(rest, at, (in - i) * size);
    for (int half = 0; half < 2; half++) _mm256_storeu_ps(to + i + 8 * half, wide(at, half, bf16));
  }
}

/* The outputs `o`, `o + part` ... of rows [rows, width] of inputs, before what is added to them. */
static inline __attribute__((always_inline)) void block(
    const Weight *w, float *y, const float *x, long o, long part, const int rows, const int bf16) {
  const long size = bf16 ? 2 : 4, width = padded(w->in);
  const char *at[STREAMS];
  __m256 sums[STREAMS][MOST];
  for (int j = 0; j < STREAMS; j++) {
    const long out = o + j * part;
    at[j] = (const char *)w->w + (out < w->out ? out : w->out - 1) * w->in * size;
    for (int r = 0; r < rows; r++) sums[j][r] = _mm256_setzero_ps();
  }
  long k = 0;
#define ADD(WEIGHTS)                                                                               \
  for (int half = 0; half < 2; half++) {                                                           \
    __m256 inputs[MOST];                                                                           \
    for (int r = 0; r < rows; r++) {                                                               \
      inputs[r] = _mm256_loadu_ps(x + r * width + k + 8 * half);                                   \
      __asm__("" : "+x"(inputs[r])); /* read once, not once per stream */                          \
    }                                                                                              \
    for (int j = 0; j < STREAMS; j++) {                                                            \
      const __m256 v = wide(WEIGHTS, half, bf16);                                                  \
      for (int r = 0; r < rows; r++) sums[j][r] = _mm256_fmadd_ps(v, inputs[r], sums[j][r]);       \
    }                                                                                              \
  }
  for (; k + STEP <= w->in; k += STEP) ADD(at[j] + k * size)
  if (k < w->in) { /* the last inputs, filled up with 0 */
    float rest[STREAMS][STEP] = {0};
    for (int j = 0; j < STREAMS; j++) memcpy(rest[j], at[j] + k * size, (w->in - k) * size);
    ADD(rest[j])
  }
  for (int r = 0; r < rows; r++) {
    const __m256 low = _mm256_hadd_ps(sums[0][r], sums[1][r]);
    const __m256 all = _mm256_hadd_ps(low, _mm256_hadd_ps(sums[2][r], sums[3][r]));
    float four[STREAMS];
    _mm_storeu_ps(four, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
    for (long j = 0, out = o; j < STREAMS && out < w->out; j++, out += part)
      y[r * w->out + out] = four[j];
  }
}

/* y [rows, out] = sums + bias + residual, rounded once. */
static inline __attribute__((always_inline)) void finish(
    const Weight *w, void *y, const float *sums, const void *residual, long rows, const int bf16) {
  for (long row = 0; row < rows; row++)
    for (long o = 0; o < w->out; o++) {
      float value = sums[row * w->out + o];
      if (w->bias) value += read(w->bias, o, bf16);
      if (residual) value += read(residual, row * w->out + o, bf16);
      put(y, row * w->out + o, value, bf16);
    }
}

#define FUNCTION(NAME, BF16, ROWS)                                                                 \
  void NAME(const Weight *w, void *y, const void *residual, const void *x, long rows) {            \
    static _Thread_local float *temp;                                                              \
    static _Thread_local long size;                                                                \
    const long width = padded(w->in), part = (w->out + STREAMS - 1) / STREAMS;                     \
    const long numbers = rows * (width + (BF16 ? w->out : 0));                                     \
    if (size < numbers) {                                                                          \
      free(temp);                                                                                  \
      size = numbers;                                                                              \
      temp = malloc(size * sizeof(float));                                                         \
    }                                                                                              \
    float *const inputs = temp, *const sums = BF16 ? temp + rows * width : y;                      \
    for (long row = 0; row < rows; row++) spread(inputs + row * width, x, row, w->in, BF16);       \
    _Pragma("omp parallel for schedule(static) if (w->out >= 64)")                                 \
    for (long o = 0; o < part; o++) {                                                              \
      long row = 0;                                                                                \
      for (; row + ROWS <= rows; row += ROWS)                                                      \
        block(w, sums + row * w->out, inputs + row * width, o, part, ROWS, BF16);                  \
      if (ROWS > 2 && row + 2 == rows)                                                             \
        block(w, sums + row * w->out, inputs + row * width, o, part, 2, BF16);                     \
      if (row + 1 == rows)                                                                         \
        block(w, sums + row * w->out, inputs + row * width, o, part, 1, BF16);                     \
    }                                                                                              \
    if (BF16 || w->bias || residual) finish(w, y, sums, residual, rows, BF16);                     \
  }
FUNCTION(multiply_float32, 0, 3)
FUNCTION(multiply_bfloat16, 1, 2) /* a mask takes the registers of a third row */
