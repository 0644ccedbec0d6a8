/* y = x W^T + bias + residual in vectors, from weights as Hugging Face keeps them.
 *
 * An output is the sum over `in` in one order, in float32, rounded once. That order depends on
 * nothing else: a row has the same bits alone and among others, in any place of a block and with
 * any number of threads. The outputs are four parts of the weight that are read side by side, each
 * from its beginning to its end: four long streams are what prefetchers of processors follow best.
 */
#include "vec.h"

#define STREAMS 4

typedef struct { const void *w, *bias; long in, out; } Weight; /* [out, in]; [out] or null */

#if LANES == 16
#define STEP 32 /* inputs that are read at once */
#define HALVES 1

INLINE Dots weights(const void *at, const int half, const int bf16) { return dots(at, 0, STEP, 1); }
#else
#define STEP 16
#define HALVES 2

/* Half of STEP weights: of bfloat16 those in even places, or those in odd ones. */
INLINE Dots weights(const void *at, const int half, const int bf16) {
  if (!bf16) return _mm256_loadu_ps((const float *)at + 8 * half);
  const __m256i both = _mm256_loadu_si256(at), odd = _mm256_set1_epi32((int)0xffff0000);
  return _mm256_castsi256_ps(half ? _mm256_and_si256(both, odd) : _mm256_slli_epi32(both, 16));
}
#endif

/* A row of x as float32 in the order of `weights`, filled up with 0; with AVX-512 x stays as it is. */
INLINE void spread(float *to, const void *x, long in, const int bf16) {
  for (long i = 0; i < in; i += STEP) {
    float rest[STEP] = {0};
    const void *at = place(x, i, bf16);
    if (in - i < STEP) at = memcpy(rest, at, (in - i) * (bf16 ? 2 : 4));
    for (int half = 0; half < HALVES; half++)
      V(storeu_ps)(to + i + 8 * half, (Vec)weights(at, half, bf16));
  }
}

/* The outputs `o`, `o + part` ... of rows [rows, width] of inputs, before what is added to them.
 * Weights are prefetched `ahead` inputs before they are read with AVX-512. */
INLINE void block(const Weight *w, float *y, const void *x, long width, long o, long part, long ahead,
                  const int rows, const int bf16) {
  const void *at[STREAMS];
  Vec sums[MOST][STREAMS];
  for (int j = 0; j < STREAMS; j++) {
    at[j] = place(w->w, least(o + j * part, w->out - 1) * w->in, bf16);
    for (int r = 0; r < rows; r++) sums[r][j] = V(setzero_ps)();
  }
  long k = 0;
#define ADD(WEIGHTS, N)                                                                            \
  for (int half = 0; half < HALVES; half++) {                                                      \
    Dots inputs[MOST];                                                                             \
    for (int r = 0; r < rows; r++) {                                                               \
      inputs[r] = dots(x, r * width + k + DOTS * half, N, LANES == 16);                            \
      __asm__("" : "+v"(inputs[r])); /* read once, not once per stream */                          \
    }                                                                                              \
    for (int j = 0; j < STREAMS; j++) {                                                            \
      if (LANES == 16) _mm_prefetch(place(at[j], k + ahead, bf16), _MM_HINT_T0);                   \
      const Dots v = weights(WEIGHTS, half, bf16);                                                 \
      for (int r = 0; r < rows; r++) sums[r][j] = dot(sums[r][j], v, inputs[r]);                   \
    }                                                                                              \
  }
  for (; k + STEP <= w->in; k += STEP) ADD(place(at[j], k, bf16), STEP)
  if (k < w->in) { /* the last inputs, filled up with 0 */
    float rest[STREAMS][16] = {0};
    for (int j = 0; j < STREAMS; j++)
      memcpy(rest[j], place(at[j], k, bf16), (w->in - k) * (bf16 ? 2 : 4));
    ADD(rest[j], w->in - k)
  }
  for (int r = 0; r < rows; r++) {
    float four[STREAMS];
    _mm_storeu_ps(four, four_sums(sums[r]));
    for (long j = 0, out = o; j < STREAMS && out < w->out; j++, out += part)
      y[r * w->out + out] = four[j];
  }
}

INLINE void multiply(const Weight *w, void *y, const void *residual, const void *x, long rows,
                     const int bf16) {
  const int most = LANES == 8 && bf16 ? 2 : MOST; /* a mask takes the registers of a third row */
  const long part = parts(w->out, STREAMS), each = parts(rows, parts(rows, most));
  const long width = LANES == 16 ? w->in : parts(w->in, STEP) * STEP;
  const long held = LANES == 16 ? 0 : rows * width; /* inputs as float32, before sums */
  const long ahead = each < rows ? w->in : 128; /* several blocks: what the next ones read */
  float *const temp = kept((held + (bf16 ? rows * w->out : 0)) * sizeof(float), 0);
  float *const sums = bf16 ? temp + held : y;
  for (long row = 0; held && row < rows; row++)
    spread(temp + row * width, place(x, row * w->in, bf16), w->in, bf16);
  const void *inputs = held ? temp : x;
#pragma omp parallel for schedule(static) if (w->out >= 64)
  for (long o = 0; o < part; o++)
    for (long row = 0; row < rows; row += each) {
      float *to = sums + row * w->out;
      const void *from = place(inputs, row * width, LANES == 16);
/* a parallel region has no constants of the function around it */
#define OF_FLOAT32(ROWS) block(w, to, from, width, o, part, ahead, ROWS, 0)
#define OF_BFLOAT16(ROWS) block(w, to, from, width, o, part, ahead, ROWS, 1)
      if (LANES == 16 || bf16) WITH(least(each, rows - row), OF_BFLOAT16)
      else WITH(least(each, rows - row), OF_FLOAT32)
    }
  if (bf16 || w->bias || residual) finish(y, sums, w->bias, residual, rows, w->out, bf16, bf16);
}

DTYPES(multiply, (const Weight *w, void *y, const void *residual, const void *x, long rows), w, y,
       residual, x, rows)
