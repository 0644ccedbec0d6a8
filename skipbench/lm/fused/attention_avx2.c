/* Attention of few rows for processors with AVX2. */
#include "vec.h"

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
  void attend_##NAME(     void *out, const void *query, const void *cache, const int32_t *parent,  \
                          float scale, long rows, long committed, long start, long heads, long kv, \
                          long d, long hidden) {                                                   \
    const Pass pass = {out,   query, cache, parent, scale, rows, committed,                        \
                       start, heads, kv,    d,      hidden};                                       \
    attend_rows(&pass, BF16);                                                                      \
  }
FUNCTIONS(float32, 0)
FUNCTIONS(bfloat16, 1)
