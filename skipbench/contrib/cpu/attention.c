/* Attention of a few rows over one cache, chains and trees, without AMX.
 *
 * Keys and values are read where they lie, in the order of memory: the keys of all heads, then the
 * values. A score is one sum over d; softmax and the sum of values go in float32, by position of
 * the text, up to the row's own. So a row has the same bits alone and among others, and what it
 * does not see is not read for it.
 */
#include <omp.h>

#include "attention.h"

#define KEYS 4       /* read side by side */
#define WIDTH 4      /* vectors of a query's sums that are in registers at once */
#define ROWS 4       /* that read the cache together */
#define POSITIONS 16 /* of values that a head's queries read before the next head's */
#define AHEAD 8      /* cache rows from what is read to what is prefetched */

/* A query, which lies, as its sums will, at a place of [rows, heads, d]. */
typedef struct { const void *query; long at; float *scores, *sums; } Query;

/* Positions of the text that some of a head's queries see: before the pass, or a row's path in it. */
typedef struct { long from, end, query, queries; const int32_t *path; } Span;

/* scores[at ..] of each query = its products with KEYS keys. */
INLINE void score(const Query *to, const void *const *key, long d, long at, const int queries,
                  const int bf16) {
  Vec sums[MOST][KEYS];
  for (int q = 0; q < queries; q++)
    for (int j = 0; j < KEYS; j++) sums[q][j] = V(setzero_ps)();
  for (long k = 0; k < d; k += DOTS) {
    Dots x[MOST];
    for (int q = 0; q < queries; q++) x[q] = dots(to[q].query, k, d - k, bf16);
    for (int j = 0; j < KEYS; j++) {
      const Dots v = dots(key[j], k, d - k, bf16);
      for (int q = 0; q < queries; q++) sums[q][j] = dot(sums[q][j], v, x[q]);
    }
  }
  for (int q = 0; q < queries; q++) _mm_storeu_ps(to[q].scores + at, four_sums(sums[q]));
}

/* `vectors` sums of each query from the place `from` on += scores[at + i] * value[i], one after the
 * other. */
INLINE void add(const Query *to, const void *const *value, long d, long from, long at, long count,
                const int vectors, const int queries, const int bf16) {
  const long n = LANES == 8 || vectors > 1 ? LANES : d - from;
  Vec sums[MOST][WIDTH];
  for (int q = 0; q < queries; q++)
    for (int g = 0; g < vectors; g++) sums[q][g] = V(loadu_ps)(to[q].sums + from + LANES * g);
  for (long i = 0; i < count; i++) {
    Vec weights[MOST];
    for (int q = 0; q < queries; q++) weights[q] = V(set1_ps)(to[q].scores[at + i]);
    for (int g = 0; g < vectors; g++) {
      const Vec v = load(value[i], from + LANES * g, n, bf16);
      for (int q = 0; q < queries; q++) sums[q][g] = V(fmadd_ps)(weights[q], v, sums[q][g]);
    }
  }
  for (int q = 0; q < queries; q++)
    for (int g = 0; g < vectors; g++) V(storeu_ps)(to[q].sums + from + LANES * g, sums[q][g]);
}

/* The scores of a query become weights that are not divided by their sum; gives 1 over it. */
INLINE float softmax(float *scores, long n, float scale) {
  float lanes[LANES], largest;
  for (long i = n; i % LANES; i++) scores[i] = scores[0];
  Vec most = V(set1_ps)(scores[0]), sums = V(setzero_ps)();
  for (long i = 0; i < n; i += LANES) most = V(max_ps)(most, V(loadu_ps)(scores + i));
  V(storeu_ps)(lanes, most);
  largest = lanes[0];
  for (int i = 1; i < LANES; i++) largest = lanes[i] > largest ? lanes[i] : largest;
  for (long i = 0; i < n; i += LANES) {
    const Vec x = only(power_below(V(loadu_ps)(scores + i), largest, scale), n - i);
    sums += x;
    V(storeu_ps)(scores + i, x);
  }
  return 1 / summed(sums);
}

/* Up to ROWS rows from `row` on, with the key heads from `head` to before `last`. */
INLINE void attend_rows(const Pass *p, long row, long rows, long head, long last, float *temp,
                        const int bf16) {
  const long group = p->heads / p->kv, each = rows * group, queries = (last - head) * each;
  const long d = p->d, step = 2 * p->kv * d, width = parts(d, LANES) * LANES;
  const long span = (p->committed + p->rows + 31) / 16 * 16;
  const void *read[POSITIONS];
  int32_t path[ROWS][p->rows];
  Span spans[1 + ROWS] = {{0, p->committed, 0, each, 0}};
  Query all[queries];
  memset(temp, 0, queries * width * sizeof(float));
  for (long r = 0; r < rows; r++) {
    const long end = p->committed + path_of(p, row + r, path[r]);
    spans[1 + r] = (Span){p->committed, end, r * group, group, path[r]};
  }
  for (long q = 0; q < queries; q++) {
    const long of = (head + q / each) * group + q % group, at = row + q % each / group;
    const long from = (at * p->heads + of) * d;
    all[q] = (Query){place(p->query, from, bf16), from, temp + queries * width + q * span,
                     temp + q * width};
  }
  for (const Span *s = spans; s <= spans + rows; s++)
    for (long at = s->from; at < s->end; at += KEYS) {
      for (long i = head * d; LANES == 16 && i < last * d; i += 32)
        for (int j = 0; j < KEYS; j++)
          _mm_prefetch(place(p->cache, (at + j + AHEAD) * step + i, bf16), _MM_HINT_T0);
      for (long h = head; h < last; h++) {
        const Query *to = all + (h - head) * each + s->query;
        for (int j = 0; j < KEYS; j++)
          read[j] = place(p->cache, seen(p, s->path, least(at + j, s->end - 1)) * step + h * d, bf16);
#define SCORE(N) score(to + q, read, d, at, N, bf16)
        for (long q = 0; q < s->queries; q += MOST) WITH(least(MOST, s->queries - q), SCORE)
      }
    }
  float share[queries];
  for (long q = 0; q < queries; q++)
    share[q] = softmax(all[q].scores, spans[1 + q % each / group].end, p->scale);
  for (const Span *s = spans; s <= spans + rows; s++)
    for (long at = s->from; at < s->end; at += POSITIONS)
      for (long h = head; h < last; h++) {
        const Query *to = all + (h - head) * each + s->query;
        const long count = least(POSITIONS, s->end - at);
        for (int j = 0; j < count; j++)
          read[j] = place(p->cache, seen(p, s->path, at + j) * step + (p->kv + h) * d, bf16);
#define ADD(N) add(to + q, read, d, from, at, count, WIDTH, N, bf16)
#define ADD_LAST(N) add(to + q, read, d, from, at, count, 1, N, bf16)
        for (long q = 0, from; q < s->queries; q += MOST) {
          const long n = least(MOST, s->queries - q);
          for (from = 0; from + WIDTH * LANES <= d; from += WIDTH * LANES) WITH(n, ADD)
          for (; from < d; from += LANES) WITH(n, ADD_LAST)
        }
      }
  for (long q = 0; q < queries; q++)
    for (long i = 0; i < d; i += LANES)
      store(p->out, all[q].at + i, d - i, V(loadu_ps)(all[q].sums + i) * share[q], bf16);
}

INLINE void attend(void *out, const void *query, const void *cache, const int32_t *parent,
                   float scale, long rows, long committed, long start, long heads, long kv, long d,
                   const int bf16) {
  const Pass pass = {out, query, cache, parent, scale, rows, committed, start, heads, kv, d};
  const Pass *const p = &pass;
  const long width = parts(p->d, LANES) * LANES, span = (p->committed + p->rows + 31) / 16 * 16;
#pragma omp parallel if (p->rows * (p->committed + p->rows) >= 4096)
  {
    const long mine = omp_get_thread_num(), threads = omp_get_num_threads();
    const long head = p->kv * mine / threads, last = p->kv * (mine + 1) / threads;
    const long numbers = ROWS * (last - head) * (p->heads / p->kv) * (width + span);
    float *const temp = kept(numbers * sizeof(float), 0);
    for (long row = 0; row < p->rows && head < last; row += ROWS) {
      const long rows = least(ROWS, p->rows - row);
      /* a parallel region has no constants of the function around it */
      if (LANES == 16 || bf16) attend_rows(p, row, rows, head, last, temp, 1);
      else attend_rows(p, row, rows, head, last, temp, 0);
    }
  }
}

DTYPES(attend,
       (void *out, const void *query, const void *cache, const int32_t *parent, float scale,
        long rows, long committed, long start, long heads, long kv, long d),
       out, query, cache, parent, scale, rows, committed, start, heads, kv, d)
