/* Attention of a few rows in bfloat16 over one cache with AMX, chains and trees.
 *
 * Keys are read as tiles of 16 rows of 64 bytes where they lie; values are packed by blocks of
 * positions. All queries of all rows that share the head read them there, 16 at a time. Scores are
 * computed by cache row and moved into the order of the text; softmax and the sum of values go by
 * position of the text. So a row has the same bits alone and among others: what it does not see has
 * the weight 0, and adding 0 times a finite value changes no bit. Where a row of a chain has a value
 * that is not finite, the chain passes as a tree, which reads no row unseen.
 */
#include "amx.h"
#include "attention.h"

#define TILE 512    /* bfloat16 per tile; 256 float32 */
#define AHEAD 64    /* rows of the cache from what is read to what is prefetched */
#define GROUPS 6    /* of 16 queries that read keys and values together */
#define POSITIONS 8 /* blocks of 32 values that are packed at once */

static _Thread_local long shaped; /* rows of this thread's tiles, or 0 */

static void shape(long rows) {
  if (shaped != rows) configure(rows, 16);
  shaped = rows;
}

/* ---- scores ---- */

/* 16 queries from the query `from` of a key head on, by 32 of d, pairs [16 of d, 16 queries, 2]; all
 * rows' queries are counted. */
static void pack_queries(const Pass *p, Half *to, long head, long from, long count) {
  const long group = p->heads / p->kv;
  for (long i = 0; i < p->d; i += 32, to += TILE) {
    __m512i x[16];
    for (long n = 0; n < 16; n++) {
      const long row = (from + n) / group, of = head * group + (from + n) % group;
      x[n] = n < count ? _mm512_maskz_loadu_epi16(first_of_32(p->d - i),
                                                  place(p->query, (row * p->heads + of) * p->d + i, 1))
                       : _mm512_setzero_si512();
    }
    transpose(x);
    for (long n = 0; n < 16; n++) _mm512_store_si512(to + 32 * n, x[n]);
  }
}

/* The keys from `at` on as a left side: where they lie, or a copy filled up with 0. */
static const Half *keys_at(const Pass *p, Half *copy, const Half *keys, long at, long end) {
  const long step = 2 * p->kv * p->d, wide = 32 * parts(p->d, 32);
  if (at + 16 <= end && p->d % 32 == 0) return keys + at * step;
  for (long n = 0; n < 16; n++)
    for (long i = 0; i < wide; i += 32)
      _mm512_store_si512(copy + n * wide + i, _mm512_maskz_loadu_epi16(
          at + n < end ? first_of_32(p->d - i) : 0, keys + least(at + n, end - 1) * step + i));
  return copy;
}

/* scores [groups, span / 16, 16 queries, 16 keys] of packed queries, and the largest of the first
 * `alike` keys by lane. */
static void score(const Pass *p, float *scores, __m512 most[][16], const Half *queries, Half *copies,
                  long head, long count, long end, long span, long alike) {
  const long chunks = parts(p->d, 32), step = 2 * p->kv * p->d;
  const Half *keys = place(p->cache, head * p->d, 1), *at[4];
  float sums[4][256] __attribute__((aligned(64)));
  shape(16);
  for (long block = 0; block < span / 16; block += 4) {
    const long wide = least(4, span / 16 - block);
    long stride[4];
    for (long t = 0; t < wide; t++) {
      const long from = 16 * (block + t), place = from;
      for (long n = place + AHEAD; n < place + AHEAD + 16; n++)
        for (long i = 0; i < p->d; i += 32)
          _mm_prefetch((const char *)(keys + n * step + i), _MM_HINT_T0);
      at[t] = keys_at(p, copies + t * chunks * TILE, keys, from, end);
      stride[t] = at[t] == keys + place * step ? 2 * step : 64 * chunks;
    }
    for (long g = 0; 16 * g < count; g++) {
      const Half *x = queries + g * chunks * TILE;
      float *to = scores + (g * span / 16 + block) * 256;
      _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
      for (long c = 0; c < chunks; c++) {
        _tile_loadd(6, x + c * TILE, 64);
        _tile_loadd(4, at[0] + 32 * c, stride[0]); _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, at[1] + 32 * c, stride[1]); _tile_dpbf16ps(1, 5, 6);
        if (wide < 3) continue;
        _tile_loadd(4, at[2] + 32 * c, stride[2]); _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, at[3] + 32 * c, stride[3]); _tile_dpbf16ps(3, 5, 6);
      }
      _tile_stored(0, sums[0], 64); _tile_stored(1, sums[1], 64);
      _tile_stored(2, sums[2], 64); _tile_stored(3, sums[3], 64);
      for (long t = 0; t < wide; t++, to += 256) {
        __m512i x[16];
        for (int n = 0; n < 16; n++) x[n] = _mm512_load_si512(sums[t] + 16 * n);
        transpose(x);
        for (int n = 0; n < 16; n++) _mm512_store_si512(to + 16 * n, x[n]);
        if (16 * (block + t) < alike)
          for (int n = 0; n < 16; n++) most[g][n] = _mm512_max_ps(most[g][n], (__m512)x[n]);
      }
    }
  }
}

/* ---- softmax ---- */

/* Rounds to bfloat16, and leaves what is lost. */
static inline __m256i split(__m512 *x) {
  const __m256i half = (__m256i)_mm512_cvtneps_pbh(*x);
  *x -= widened(half);
  return half;
}

/* Weights of two vectors of scores: those of 32 positions in bfloat16, then what their rounding has
 * lost. */
static inline __attribute__((always_inline)) __m512 weigh(float *scores, __m512 sums, __m512 base,
                                                          __m512 less, __mmask16 low,
                                                          __mmask16 high) {
  __m512 x[2];
  for (int i = 0; i < 2; i++) {
    x[i] = power(_mm512_fmsub_ps(_mm512_load_ps(scores + 256 * i), base, less));
    x[i] = _mm512_maskz_mov_ps(i ? high : low, x[i]);
    sums = _mm512_add_ps(sums, x[i]);
  }
  for (int i = 0; i < 2; i++) {
    const __m512i half = _mm512_castsi256_si512(split(x));
    _mm512_store_si512(scores + 256 * i, _mm512_inserti64x4(half, split(x + 1), 1));
  }
  return sums;
}

/* The scores of up to 16 queries become weights, 0 from a query's `length` to `span`. Tiles hold 16
 * positions in float32; afterwards every other one holds the weights of 32 in bfloat16, and the next
 * one what their rounding has lost. All see the first `alike` positions, whose largest scores `most`
 * has. `share`: 1 over the sums. */
static void softmax(float *scores, const __m512 *most, float *share, const long *length, long count,
                    long span, long alike, float scale) {
  const __m512 base = _mm512_set1_ps(scale * 1.44269504f);
  __m512 less[16], sums[16];
  for (long n = 0; n < count; n++) {
    __m512 largest = most[n];
    for (long j = alike; j < length[n]; j += 16)
      largest = _mm512_mask_max_ps(largest, first(length[n] - j), largest,
                                   _mm512_load_ps(scores + 16 * (j + n)));
    less[n] = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(largest)), base);
    sums[n] = _mm512_setzero_ps();
  }
  for (long j = 0; j < alike; j += 32)
    for (long n = 0; n < count; n++)
      sums[n] = weigh(scores + 16 * (j + n), sums[n], base, less[n], 0xffff, 0xffff);
  for (long n = 0; n < count; n++) {
    for (long j = alike; j < span; j += 32) {
      const long left = length[n] - j;
      sums[n] = weigh(scores + 16 * (j + n), sums[n], base, less[n], left > 0 ? first(left) : 0,
                      left > 16 ? first(left - 16) : 0);
    }
    share[n] = 1 / _mm512_reduce_add_ps(sums[n]);
  }
}

/* ---- values ---- */

/* Values of the text positions `at` .. as the right side of their sum: by 32 positions and 32 of d
 * two tiles of pairs [16 of positions, 16 of d, 2], the first with the first four of every eight of
 * d; 0 from the position `end` on. Positions from `committed` on are the cache rows
 * `start + path[..]`, or, without a path, the ones of their number.
 */
static void pack_values(const Pass *p, Half *to, const Half *values, long at, long end, long blocks,
                        const int32_t *path) {
  const long step = 2 * p->kv * p->d, groups = 2 * parts(p->d, 32);
  for (const Half *last = to + blocks * groups * TILE; to < last; to += (groups - 1) * TILE)
    for (long pair = 0; pair < 16; pair++, at += 2, to += 32) {
      const Half *row[2];
      for (int i = 0; i < 2; i++) {
        const long text = least(at + i, end - 1);
        row[i] = values + seen(p, path, text) * step;
      }
      for (long i = 0; i < p->d; i += 32) {
        _mm_prefetch((const char *)(row[0] + AHEAD * step + i), _MM_HINT_T0);
        _mm_prefetch((const char *)(row[1] + AHEAD * step + i), _MM_HINT_T0);
        const __mmask32 lanes = first_of_32(p->d - i);
        const __m512i x = _mm512_maskz_loadu_epi16(at < end ? lanes : 0, row[0] + i);
        const __m512i y = _mm512_maskz_loadu_epi16(at + 1 < end ? lanes : 0, row[1] + i);
        _mm512_store_si512(to + i / 16 * TILE, _mm512_unpacklo_epi16(x, y));
        _mm512_store_si512(to + i / 16 * TILE + TILE, _mm512_unpackhi_epi16(x, y));
      }
    }
}

/* Adds the values of `blocks` blocks of 32 positions, from the block `from` on, to the sums [groups]
 * of some queries: by the weights, and by what their rounding has lost. */
static void add_values(const Pass *p, float *sums, const float *scores, const Half *values,
                       long from, long blocks, long queries) {
  const long groups = 2 * parts(p->d, 32);
  shape(queries);
  for (long g = 0; g < groups; g += 4, sums += 4 * 256) {
    const int four = g + 4 <= groups;
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    if (from) { _tile_loadd(0, sums, 64); _tile_loadd(1, sums + 256, 64); }
    if (from && four) { _tile_loadd(2, sums + 512, 64); _tile_loadd(3, sums + 768, 64); }
    for (long b = 0; b < blocks; b++) {
      const Half *v = values + (b * groups + g) * TILE;
      _tile_stream_loadd(4, scores + 2 * (from + b) * 256, 64);
      _tile_stream_loadd(5, scores + 2 * (from + b) * 256 + 256, 64);
      _tile_loadd(6, v, 64); _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, v + TILE, 64); _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(0, 5, 6); _tile_dpbf16ps(1, 5, 7);
      if (!four) continue;
      _tile_loadd(6, v + 2 * TILE, 64); _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, v + 3 * TILE, 64); _tile_dpbf16ps(3, 4, 7);
      _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64); _tile_stored(1, sums + 256, 64);
    if (four) { _tile_stored(2, sums + 512, 64); _tile_stored(3, sums + 768, 64); }
  }
}

/* Writes a query's sums, whose tiles have d as `pack_values` says. */
static void emit(const Pass *p, const float *sums, float share, long row, long head) {
  const __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const __m512i order[] = {low, _mm512_add_epi32(low, _mm512_set1_epi32(8))};
  for (long i = 0; i < p->d; i += 16) {
    const float *at = sums + i / 32 * 512;
    const __m512 x = _mm512_permutex2var_ps(_mm512_load_ps(at), order[i / 16 % 2],
                                            _mm512_load_ps(at + 256));
    store(p->out, (row * p->heads + head) * p->d + i, p->d - i, x * share, 1);
  }
}

typedef struct { Half *queries, *keys, *values, *tail; float *scores, *sums; } Temp;

/* This thread's, kept from call to call. */
static Temp temp_for(const Pass *p, long groups, long span) {
  const long chunks = parts(p->d, 32);
  const long need[] = {groups * chunks, 4 * chunks, POSITIONS * 2 * chunks,
                       (parts(p->rows, 32) + 1) * 2 * chunks, groups * span / 16,
                       groups * 2 * chunks};
  long from[7] = {0};
  for (int i = 0; i < 6; i++) from[i + 1] = from[i] + need[i] * TILE;
  Half *const at = kept(from[6] * sizeof(Half), 0);
  return (Temp){at, at + from[1], at + from[2], at + from[3], (float *)(at + from[4]),
                (float *)(at + from[5])};
}

/* Up to 16 GROUPS queries of one key head, from the query `from` on. */
static void attend(const Pass *p, Temp temp, long head, long from, long count, long end, long span) {
  const long chunks = parts(p->d, 32), group = p->heads / p->kv;
  const long before = p->parent ? p->committed / 32 : span / 32; /* blocks that all rows see alike */
  const long alike = p->committed / 32 * 32;
  const Half *values = place(p->cache, (p->kv + head) * p->d, 1);
  int32_t path[p->rows];
  long length[16 * GROUPS];
  float share[16 * GROUPS];
  __m512 most[GROUPS][16];
  for (long n = 0; n < count; n += 16) {
    pack_queries(p, temp.queries + n / 16 * chunks * TILE, head, from + n, least(16, count - n));
    for (int i = 0; i < 16; i++) most[n / 16][i] = _mm512_set1_ps(-INFINITY);
  }
  score(p, temp.scores, most, temp.queries, temp.keys, head, count, end, span, alike);
  for (long n = 0; n < count; n++) {
    const long row = (from + n) / group;
    length[n] = p->committed + row + 1;
    if (!p->parent) continue;
    float *scores = temp.scores + n / 16 * (span / 16) * 256 + 16 * (n % 16);
    const long depth = path_of(p, row, path);
    length[n] = p->committed + depth;
    for (long i = 0; i < depth; i++) {
      const long to = p->committed + i, at = p->start + path[i];
      scores[to / 16 * 256 + to % 16] = scores[at / 16 * 256 + at % 16];
    }
  }
  for (long n = 0; n < count; n += 16)
    softmax(temp.scores + n / 16 * (span / 16) * 256, most[n / 16], share + n, length + n,
            least(16, count - n), span, alike, p->scale);
#define ADD(N, QUERIES, VALUES, FROM, BLOCKS)                                                      \
  add_values(p, temp.sums + (N) / 16 * 2 * chunks * 256 + 16 * ((N) % 16),                         \
             temp.scores + (N) / 16 * (span / 16) * 256 + 16 * ((N) % 16), VALUES, FROM, BLOCKS,   \
             QUERIES)
  for (long block = 0; block < before; block += POSITIONS) {
    const long blocks = least(POSITIONS, before - block);
    pack_values(p, temp.values, values, 32 * block, p->parent ? p->committed : end, blocks, 0);
    for (long n = 0; n < count; n += 16) ADD(n, least(16, count - n), temp.values, block, blocks);
  }
  for (long n = 0, next; p->parent && n < count; n = next) { /* the rows of a tree by themselves */
    const long row = (from + n) / group, length = p->committed + path_of(p, row, path);
    const long blocks = parts(length, 32) - before;
    next = least(least(count, (row + 1) * group - from), n / 16 * 16 + 16);
    pack_values(p, temp.tail, values, 32 * before, length, blocks, path);
    ADD(n, next - n, temp.tail, before, blocks);
  }
  for (long n = 0; n < count; n++)
    emit(p, temp.sums + n / 16 * 2 * chunks * 256 + 16 * (n % 16), share[n], (from + n) / group,
         head * group + (from + n) % group);
}

/* Whether the rows of the pass hold finite values for one head. */
static int all_finite(const Pass *p, const Half *values) {
  int other = 0;
  for (long row = p->start; row < p->start + p->rows; row++)
    for (long i = 0; i < p->d; i++)
      other |= (values[row * 2 * p->kv * p->d + i] & 0x7f80) == 0x7f80;
  return !other;
}

void attend_tiles(Half *out, const Half *query, const Half *cache, const int32_t *parent,
                 float scale, long rows, long committed, long start, long heads, long kv, long d) {
  const Pass pass = {out, query, cache, parent, scale, rows, committed, start, heads, kv, d};
  int32_t chain[rows];
  for (long row = 0; row < rows; row++) chain[row] = row - 1;
  const long end = start + rows, group = heads / kv, queries = rows * group;
#pragma omp parallel for schedule(static) if (rows * end >= 4096)
  for (long head = 0; head < kv; head++) {
    Pass own = pass;
    if (!parent && rows > 1 && !all_finite(&own, cache + (kv + head) * d)) own.parent = chain;
    shaped = 0;
    const Temp temp = temp_for(&own, least(GROUPS, parts(queries, 16)), 32 * parts(end, 32));
    for (long from = 0; from < queries; from += 16 * GROUPS) {
      const long count = least(16 * GROUPS, queries - from), last = (from + count - 1) / group;
      const long seen = own.parent ? end : start + last + 1; /* by the last of a chain's rows */
      attend(&own, temp, head, from, count, seen, 32 * parts(seen, 32));
    }
    _tile_release();
  }
}
