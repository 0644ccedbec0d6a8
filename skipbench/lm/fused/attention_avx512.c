/* Attention of a few rows in bfloat16 over one cache, chains and trees, for processors with AVX-512
 * bf16 and without AMX.
 *
 * Keys and values are read where they lie, in the order of memory: the keys of all heads, then the
 * values. A score is one sum over d; softmax and the sum of values go in float32, by position of
 * the text, up to the row's own. So a row has the same bits alone and among others, and what it
 * does not see is not read for it.
 */
#include <omp.h>

#include "attention.h"

#define KEYS 4       /* read side by side */
#define MOST 5       /* queries of a block: its sums stay in registers */
#define ROWS 4       /* that read the cache together */
#define POSITIONS 16 /* of values that a head's queries read before the next head's */
#define AHEAD 8      /* cache rows from what is read to what is prefetched */

/* Some neighbouring queries that share a key head. */
typedef struct { const bf16 *query; float *scores, *sums; } Query;

/* scores[at ..] of each query = its products with KEYS keys, of which `keys` count. */
static inline __attribute__((always_inline)) void score(
    const Query *to, const bf16 *const key[KEYS], long d, long at, long keys, const int queries) {
  __m512 sums[MOST][KEYS];
  for (int q = 0; q < queries; q++)
    for (int j = 0; j < KEYS; j++) sums[q][j] = _mm512_setzero_ps();
  for (long k = 0; k < d; k += 32) {
    const __mmask32 lanes = first_of_32(d - k);
    __m512bh v[KEYS];
    for (int j = 0; j < KEYS; j++) v[j] = (__m512bh)_mm512_maskz_loadu_epi16(lanes, key[j] + k);
    for (int q = 0; q < queries; q++) {
      const __m512bh x = (__m512bh)_mm512_maskz_loadu_epi16(lanes, to[q].query + k);
      for (int j = 0; j < KEYS; j++) sums[q][j] = _mm512_dpbf16_ps(sums[q][j], v[j], x);
    }
  }
  for (int q = 0; q < queries; q++)
    _mm_mask_storeu_ps(to[q].scores + at, (1 << keys) - 1, four_sums(sums[q]));
}

/* sums of each query += scores[at + i] * value[i], one after the other. */
static inline __attribute__((always_inline)) void add(
    const Query *to, const bf16 *const *value, long d, long at, long count, const int queries) {
  for (long from = 0; from < d; from += 64) {
    __m512 sums[MOST][4];
    for (int q = 0; q < queries; q++)
      for (int g = 0; g < 4; g++) sums[q][g] = _mm512_loadu_ps(to[q].sums + from + 16 * g);
    for (long i = 0; i < count; i++) {
      __m512 v[4];
      for (int g = 0; g < 4; g++) {
        const long left = d - from - 16 * g;
        v[g] = left >= 16 ? wide(value[i] + from + 16 * g, 0xffff)
                          : wide(value[i] + from + 16 * g, left > 0 ? first(left) : 0);
      }
      for (int q = 0; q < queries; q++) {
        const __m512 weight = _mm512_set1_ps(to[q].scores[at + i]);
        for (int g = 0; g < 4; g++) sums[q][g] = _mm512_fmadd_ps(weight, v[g], sums[q][g]);
      }
    }
    for (int q = 0; q < queries; q++)
      for (int g = 0; g < 4; g++) _mm512_storeu_ps(to[q].sums + from + 16 * g, sums[q][g]);
  }
}

#define BLOCKS(NAME, OF)                                                                           \
  static void NAME(const Query *to, const bf16 *const *of, long d, long at, long n, long queries) {\
    for (long q = 0; q < queries; q += MOST) switch (least(MOST, queries - q)) {                   \
      case 1: OF(to + q, of, d, at, n, 1); break;                                                  \
      case 2: OF(to + q, of, d, at, n, 2); break;                                                  \
      case 3: OF(to + q, of, d, at, n, 3); break;                                                  \
      case 4: OF(to + q, of, d, at, n, 4); break;                                                  \
      case 5: OF(to + q, of, d, at, n, 5); break;                                                  \
    }                                                                                              \
  }
BLOCKS(score_all, score)
BLOCKS(add_all, add)

/* The scores of a query become weights that are not divided by their sum; gives 1 over it. */
static float softmax(float *scores, long length, float scale) {
  __m512 most = _mm512_set1_ps(-INFINITY), sums = _mm512_setzero_ps();
  for (long j = 0; j < length; j += 16)
    most = _mm512_mask_max_ps(most, first(length - j), most, _mm512_loadu_ps(scores + j));
  const __m512 base = _mm512_set1_ps(scale * 1.44269504f);
  const __m512 less = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(most)), base);
  for (long j = 0; j < length; j += 16) {
    const __mmask16 lanes = first(length - j);
    const __m512 x = _mm512_maskz_mov_ps(
        lanes, power(_mm512_fmsub_ps(_mm512_loadu_ps(scores + j), base, less)));
    sums = _mm512_add_ps(sums, x);
    _mm512_storeu_ps(scores + j, x);
  }
  return 1 / _mm512_reduce_add_ps(sums);
}

/* Up to ROWS rows from `row` on, with the key heads from `head` to before `last`. */
static void attend(const Pass *p, long row, long rows, long head, long last, float *temp) {
  const long group = p->heads / p->kv, each = rows * group, queries = (last - head) * each;
  const long d = p->d, step = 2 * p->kv * d, width = (d + 63) / 64 * 64;
  const long span = (p->committed + p->rows + 31) / 16 * 16;
  const bf16 *const keys = p->cache, *const values = p->cache + p->kv * d, *read[POSITIONS];
  int32_t path[ROWS][p->rows];
  long depth[ROWS];
  Query all[queries];
  memset(temp, 0, queries * width * sizeof(float));
  for (long q = 0; q < queries; q++) {
    const long of = (head + q / each) * group + q % group, at = row + q % each / group;
    all[q] = (Query){p->query + (at * p->heads + of) * d, temp + queries * width + q * span,
                     temp + q * width};
  }
  for (long at = 0; at < p->committed; at += KEYS) {
    for (long i = head * d; i < last * d; i += 32)
      for (int j = 0; j < KEYS; j++)
        _mm_prefetch((const char *)(keys + (at + j + AHEAD) * step + i), _MM_HINT_T0);
    for (long h = head; h < last; h++) {
      for (int j = 0; j < KEYS; j++) read[j] = keys + unhidden(p, least(at + j, p->committed - 1)) * step + h * d;
      score_all(all + (h - head) * each, read, d, at, least(KEYS, p->committed - at), each);
    }
  }
  for (long r = 0; r < rows; r++) {
    depth[r] = path_of(p, row + r, path[r]);
    for (long i = 0; i < depth[r]; i += KEYS)
      for (long h = head; h < last; h++) {
        for (int j = 0; j < KEYS; j++)
          read[j] = keys + unhidden(p, p->start + path[r][least(i + j, depth[r] - 1)]) * step + h * d;
        score_all(all + (h - head) * each + r * group, read, d, p->committed + i,
                  least(KEYS, depth[r] - i), group);
      }
  }
  float share[queries];
  for (long q = 0; q < queries; q++)
    share[q] = softmax(all[q].scores, p->committed + depth[q % each / group], p->scale);
  for (long at = 0; at < p->committed; at += POSITIONS)
    for (long h = head; h < last; h++) {
      const long count = least(POSITIONS, p->committed - at);
      for (int j = 0; j < count; j++) read[j] = values + unhidden(p, at + j) * step + h * d;
      add_all(all + (h - head) * each, read, d, at, count, each);
    }
  for (long r = 0; r < rows; r++)
    for (long i = 0; i < depth[r]; i += POSITIONS)
      for (long h = head; h < last; h++) {
        const long count = least(POSITIONS, depth[r] - i);
        for (int j = 0; j < count; j++)
          read[j] = values + unhidden(p, p->start + path[r][i + j]) * step + h * d;
        add_all(all + (h - head) * each + r * group, read, d, p->committed + i, count, group);
      }
  for (long q = 0; q < queries; q++) {
    const long of = (head + q / each) * group + q % group, at = row + q % each / group;
    for (long i = 0; i < d; i += 16)
      store(p->out + (at * p->heads + of) * d + i,
            _mm512_mul_ps(_mm512_loadu_ps(all[q].sums + i), _mm512_set1_ps(share[q])),
            first(d - i));
  }
}

void attend_bfloat16(bf16 *out, const bf16 *query, const bf16 *cache, const int32_t *parent,
                    float scale, long rows, long committed, long start, long heads, long kv,
                    long d, long hidden) {
  const Pass pass = {out,   query, cache, parent, scale, rows, committed,
                     start, heads, kv,    d,      hidden};
  const long width = (d + 63) / 64 * 64, span = (committed + rows + 31) / 16 * 16;
#pragma omp parallel if (rows * (committed + rows) >= 4096)
  {
    static _Thread_local float *temp;
    static _Thread_local long size;
    const long mine = omp_get_thread_num(), threads = omp_get_num_threads();
    const long head = kv * mine / threads, last = kv * (mine + 1) / threads;
    const long need = ROWS * (last - head) * (heads / kv) * (width + span);
    if (size < need) {
      free(temp);
      size = need + need / 2;
      temp = aligned_alloc(64, (size * sizeof(float) + 63) / 64 * 64);
    }
    for (long row = 0; row < rows && head < last; row += ROWS)
      attend(&pass, row, least(ROWS, rows - row), head, last, temp);
  }
}
