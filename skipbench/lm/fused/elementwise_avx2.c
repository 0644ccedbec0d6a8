/* Norms, silu, rotations and attention of few rows, each in one call, for processors with AVX2: one
 * row takes longer in torch's calls than its arithmetic. Arithmetic is in float32; numbers are
 * float32 or bfloat16, by the name of the function. No row depends on another one.
 */
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>

#include "numbers.h"

static inline __m256i bits(__m256 v) { return _mm256_castps_si256(v); }

/* `n` numbers from the place `i` on, at most 8; the others are 0. */
static inline __m256 load(const void *at, long i, long n, const int bf16) {
  const char *p = (const char *)at + i * (bf16 ? 2 : 4);
  float rest[8] = {0};
  if (n < 8) p = memcpy(rest, p, n * (bf16 ? 2 : 4));
  if (!bf16) return _mm256_loadu_ps((const float *)p);
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* To bfloat16 in the upper half of each lane, ties to even. */
static inline __m256 rounded(__m256 v, const int bf16) {
  if (!bf16) return v;
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits(v), 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff));
  const __m256 near = _mm256_castsi256_ps(_mm256_add_epi32(bits(v), up));
  const __m256 nan = _mm256_or_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
  const __m256 sum = _mm256_blendv_ps(near, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(bits(sum), 16), 16));
}

static inline void store(void *at, long i, long n, __m256 v, const int bf16) {
  char *p = (char *)at + i * (bf16 ? 2 : 4);
  float rest[8];
  if (bf16) {
    const __m256i half = _mm256_srli_epi32(bits(rounded(v, 1)), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(half, half), 8);
    _mm_storeu_si128((__m128i *)rest, _mm256_castsi256_si128(packed));
  } else {
    _mm256_storeu_ps(rest, v);
  }
  memcpy(p, rest, (n < 8 ? n : 8) * (bf16 ? 2 : 4));
}

static inline float total(__m256 v) {
  float lanes[8], sum = 0;
  _mm256_storeu_ps(lanes, v);
  for (int i = 0; i < 8; i++) sum += lanes[i];
  return sum;
}

/* 2^-22 and less of e^x is lost; a NaN stays one. */
static inline __m256 exponential(__m256 x) {
  const float taylor[] = {1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1, 1};
  x = _mm256_min_ps(_mm256_set1_ps(128), _mm256_max_ps(_mm256_set1_ps(-128), x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), 0);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
  __m256 sum = _mm256_set1_ps(1.f / 720);
  for (int i = 0; i < 6; i++) sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(taylor[i]));
  /* 2^n as two factors: n exceeds the exponents of float32 */
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const __m256i one = _mm256_set1_epi32(127), rest = _mm256_sub_epi32(whole, half);
  sum = _mm256_mul_ps(sum, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, one), 23)));
  return _mm256_mul_ps(
      sum, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, one), 23)));
}

/* y [rows, width] = x / sqrt(mean of x^2 + eps) * w */
static inline __attribute__((always_inline)) void rms_norm(
    void *y, const void *x, const void *w, float eps, long rows, long width, const int bf16) {
  for (long row = 0; row < rows; row++) {
    const long from = row * width;
    __m256 squares = _mm256_setzero_ps();
    for (long i = 0; i < width; i += 8) {
      const __m256 v = load(x, from + i, width - i, bf16);
      squares = _mm256_fmadd_ps(v, v, squares);
    }
    const __m256 scale = _mm256_set1_ps(1 / sqrtf(total(squares) / (float)width + eps));
    for (long i = 0; i < width; i += 8) {
      const __m256 v = _mm256_mul_ps(load(x, from + i, width - i, bf16), scale);
      store(y, from + i, width - i, _mm256_mul_ps(v, load(w, i, width - i, bf16)), bf16);
    }
  }
}

/* y [rows, width] = silu(gate) * up of gate_up [rows, 2 width], with silu rounded before. */
static inline __attribute__((always_inline)) void silu_times(
    void *y, const void *gate_up, long rows, long width, const int bf16) {
  const __m256 one = _mm256_set1_ps(1), zero = _mm256_setzero_ps();
  for (long row = 0; row < rows; row++)
    for (long i = 0; i < width; i += 8) {
      const __m256 x = load(gate_up, 2 * row * width + i, width - i, bf16);
      const __m256 up = load(gate_up, (2 * row + 1) * width + i, width - i, bf16);
      const __m256 power = exponential(_mm256_sub_ps(zero, x));
      const __m256 silu = rounded(_mm256_div_ps(x, _mm256_add_ps(one, power)), bf16);
      store(y, row * width + i, width - i, _mm256_mul_ps(silu, up), bf16);
    }
}

/* Rotary positions of queries and keys, and what goes to the cache.
 *
 * qkv [rows, heads + 2 kv, d]; cos, sin [rows, d], the sine with the sign of `rotate_half`;
 * query [rows, heads, d] and cache [rows, 2 kv, d] are written.
 */
static inline __attribute__((always_inline)) void rotate(
    void *query, void *cache, const void *qkv, const void *cos, const void *sin, long rows,
    long heads, long kv, long d, const int bf16) {
  const long half = d / 2, size = bf16 ? 2 : 4;
  for (long row = 0; row < rows; row++) {
    const long from = row * (heads + 2 * kv) * d, angle = row * d;
    for (long head = 0; head < heads + kv; head++) {
      void *to = head < heads ? query : cache;
      const long at = from + head * d;
      const long place = head < heads ? (row * heads + head) * d : (2 * row * kv + head - heads) * d;
      for (long i = 0; i < half; i += 8) {
        const long n = half - i;
        const __m256 low = load(qkv, at + i, n, bf16), high = load(qkv, at + half + i, n, bf16);
        const __m256 a = _mm256_mul_ps(low, load(cos, angle + i, n, bf16));
        const __m256 b = _mm256_mul_ps(high, load(cos, angle + half + i, n, bf16));
        const __m256 s = load(sin, angle + i, n, bf16), t = load(sin, angle + half + i, n, bf16);
        store(to, place + i, n, _mm256_fmadd_ps(high, s, rounded(a, bf16)), bf16);
        store(to, place + half + i, n, _mm256_fmadd_ps(low, t, rounded(b, bf16)), bf16);
      }
    }
    memcpy((char *)cache + (2 * row + 1) * kv * d * size,
           (const char *)qkv + (from + (heads + kv) * d) * size, kv * d * size);
  }
}

typedef struct {
  void *out;                 /* [rows, heads, d] */
  const void *query, *cache; /* [rows, heads, d]; [capacity, 2 kv, d], keys before values */
  const int32_t *parent;     /* [rows], or null where each row follows the one before */
  float scale;
  long rows, committed, start, heads, kv, d;
  long hidden; /* cache rows behind the first SINKS that the numbers before leave out */
} Pass;

static inline long unhidden(const Pass *p, long row) { return row < SINKS ? row : row + p->hidden; }

#define KEYS 4    /* that meet a query at once */
#define VALUES 16 /* that meet its sums while they are in registers */

/* Scores of a query, from the place `at` on, with KEYS keys. */
static inline __attribute__((always_inline)) void score(
    const Pass *p, float *scores, long at, const long *keys, const int bf16) {
  __m256 sums[KEYS];
  for (int j = 0; j < KEYS; j++) sums[j] = _mm256_setzero_ps();
  for (long k = 0; k < p->d; k += 8) {
    const __m256 q = load(p->query, at + k, 8, bf16);
    for (int j = 0; j < KEYS; j++)
      sums[j] = _mm256_fmadd_ps(q, load(p->cache, keys[j] + k, 8, bf16), sums[j]);
  }
  const __m256 low = _mm256_hadd_ps(sums[0], sums[1]), high = _mm256_hadd_ps(sums[2], sums[3]);
  const __m256 all = _mm256_hadd_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  _mm_storeu_ps(scores, _mm_mul_ps(four, _mm_set1_ps(p->scale)));
}

/* Adds `n` values by their weights, one after the other, to `vectors` sums of 8. */
static inline __attribute__((always_inline)) void mix(
    const Pass *p, float *to, const float *weights, const long *values, int n, const int vectors,
    const int bf16) {
  __m256 sums[8];
  for (int v = 0; v < vectors; v++) sums[v] = _mm256_loadu_ps(to + 8 * v);
  for (int i = 0; i < n; i++) {
    const __m256 weight = _mm256_set1_ps(weights[i]);
    for (int v = 0; v < vectors; v++)
      sums[v] = _mm256_fmadd_ps(weight, load(p->cache, values[i] + 8 * v, 8, bf16), sums[v]);
  }
  for (int v = 0; v < vectors; v++) _mm256_storeu_ps(to + 8 * v, sums[v]);
}

static inline __attribute__((always_inline)) void mix_head(
    const Pass *p, float *to, const float *weights, const long *values, int n, const int bf16) {
  long at[VALUES], k = 0;
  for (; k + 64 <= p->d; k += 64) {
    for (int i = 0; i < n; i++) at[i] = values[i] + k;
    mix(p, to + k, weights, at, n, 8, bf16);
  }
  for (; k < p->d; k += 8) {
    for (int i = 0; i < n; i++) at[i] = values[i] + k;
    mix(p, to + k, weights, at, n, 1, bf16);
  }
}

/* Weights in the place of `n` scores, and one over their sum. */
static inline float softmax(float *scores, long n) {
  float most = scores[0];
  for (long i = 1; i < n; i++) most = scores[i] > most ? scores[i] : most;
  for (long i = n; i % 8; i++) scores[i] = -INFINITY;
  __m256 sum = _mm256_setzero_ps();
  for (long i = 0; i < n; i += 8) {
    const __m256 less = _mm256_sub_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(most));
    const __m256 power = exponential(less);
    _mm256_storeu_ps(scores + i, power);
    sum = _mm256_add_ps(sum, power);
  }
  return 1 / total(sum);
}

/* The cache rows of a row's ancestors and itself, in the order of the text. */
static inline long path_of(const Pass *p, long row, long *path) {
  long n = 0, at;
  for (long r = row; r >= 0; r = p->parent ? p->parent[r] : r - 1) n++;
  at = n;
  for (long r = row; r >= 0; r = p->parent ? p->parent[r] : r - 1) path[--at] = unhidden(p, p->start + r);
  return n;
}

/* The queries of all rows that share a key head: committed keys and values are read once for all. */
static inline __attribute__((always_inline)) void attend(
    const Pass *p, float *temp, long *path, long head, const int bf16) {
  const long group = p->heads / p->kv, queries = p->rows * group, stride = 2 * p->kv * p->d;
  const long span = (p->committed + p->rows + 15) / 8 * 8, values = p->kv * p->d;
  float *const sums = temp, *const scores = temp + queries * p->d;
  long at[VALUES];
  for (long i = 0; i < queries * p->d; i++) sums[i] = 0;
  for (long i = 0; i < p->committed; i += KEYS) {
    for (int j = 0; j < KEYS; j++) {
      const long key = i + j < p->committed ? i + j : p->committed - 1;
      at[j] = unhidden(p, key) * stride + head * p->d;
    }
    for (long q = 0; q < queries; q++) {
      const long query = (q / group * p->heads + head * group + q % group) * p->d;
      score(p, scores + q * span + i, query, at, bf16);
    }
  }
  for (long q = 0; q < queries; q++) {
    const long query = (q / group * p->heads + head * group + q % group) * p->d;
    const long n = path_of(p, q / group, path);
    for (long i = 0; i < n; i += KEYS) {
      for (int j = 0; j < KEYS; j++) at[j] = path[i + j < n ? i + j : n - 1] * stride + head * p->d;
      score(p, scores + q * span + p->committed + i, query, at, bf16);
    }
    float *const weights = scores + q * span;
    weights[span - 1] = softmax(weights, p->committed + n);
  }
  for (long i = 0; i < p->committed; i += VALUES) {
    const int n = (int)(p->committed - i < VALUES ? p->committed - i : VALUES);
    for (int j = 0; j < n; j++) at[j] = unhidden(p, i + j) * stride + values + head * p->d;
    for (long q = 0; q < queries; q++)
      mix_head(p, sums + q * p->d, scores + q * span + i, at, n, bf16);
  }
  for (long q = 0; q < queries; q++) {
    const long n = path_of(p, q / group, path), to = q / group * p->heads + head * group + q % group;
    const float *weights = scores + q * span + p->committed, share = scores[q * span + span - 1];
    for (long i = 0; i < n; i += VALUES) {
      const int count = (int)(n - i < VALUES ? n - i : VALUES);
      for (int j = 0; j < count; j++) at[j] = path[i + j] * stride + values + head * p->d;
      mix_head(p, sums + q * p->d, weights + i, at, count, bf16);
    }
    for (long k = 0; k < p->d; k += 8) {
      const __m256 sum = _mm256_loadu_ps(sums + q * p->d + k);
      store(p->out, to * p->d + k, 8, _mm256_mul_ps(sum, _mm256_set1_ps(share)), bf16);
    }
  }
}

/* Rows of a pass behind a cache: each sees the first `committed` rows of it, and of those from
 * `start` on itself and its ancestors. */
static inline __attribute__((always_inline)) void attend_rows(const Pass *p, const int bf16) {
  const long queries = p->rows * (p->heads / p->kv), end = p->committed + p->rows;
  const long numbers = queries * (p->d + end + 16);
#pragma omp parallel if (p->rows * end >= 4096)
  {
    float *const temp = malloc(numbers * sizeof(float) + p->rows * sizeof(long));
    long *const path = (long *)temp;
#pragma omp for schedule(static)
    for (long head = 0; head < p->kv; head++)
      attend(p, (float *)(path + p->rows), path, head, bf16);
    free(temp);
  }
}

#define FUNCTIONS(NAME, BF16)                                                                      \
  void rms_norm_##NAME(void *y, const void *x, const void *w, float eps, long rows, long width) {  \
    rms_norm(y, x, w, eps, rows, width, BF16);                                                     \
  }                                                                                                \
  void silu_times_##NAME(void *y, const void *gate_up, long rows, long width) {                    \
    silu_times(y, gate_up, rows, width, BF16);                                                     \
  }                                                                                                \
  void rotate_##NAME(void *query, void *cache, const void *qkv, const void *cos, const void *sin,  \
                     long rows, long heads, long kv, long d) {                                     \
    rotate(query, cache, qkv, cos, sin, rows, heads, kv, d, BF16);                                 \
  }                                                                                                \
  void attend_rows_##NAME(void *out, const void *query, const void *cache, const int32_t *parent,  \
                          float scale, long rows, long committed, long start, long heads, long kv, \
                          long d, long hidden) {                                                   \
    const Pass pass = {out,   query, cache, parent, scale, rows, committed,                        \
                       start, heads, kv,    d,      hidden};                                       \
    attend_rows(&pass, BF16);                                                                      \
  }
FUNCTIONS(float32, 0)
FUNCTIONS(bfloat16, 1)
