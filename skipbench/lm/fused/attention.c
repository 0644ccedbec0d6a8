/* Attention of a few rows in bfloat16 over one cache with AMX, chains and trees.
 *
 * Everything lies in tiles of 1 KB: 16 rows of 64 bytes. Keys and values are packed into tiles once
 * per key head, and all queries of all rows that share the head read them there, 16 at a time.
 * Scores are computed by cache row and moved into the order of the text; softmax and the sum of
 * values go by position of the text. So a row has the same bits alone and among others: what a row
 * does not see has the weight 0, and adding 0 times a finite value changes no bit. Where a row of
 * a chain has a value that is not finite, the chain passes as a tree, which reads no row unseen.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "avx512.h"

#define TILE 512 /* bfloat16 per tile; 256 float32 */
#define AHEAD 16 /* keys from what is read to what is prefetched */

typedef struct {
  bf16 *out;             /* [rows, heads, d] */
  const bf16 *query;     /* [rows, heads, d] */
  const bf16 *cache;     /* [.., 2 kv, d]: the keys of all heads, then the values */
  const int32_t *parent; /* [rows]: as `TokenRows.parent`, or null for a chain */
  float scale;
  /* a row sees the cache rows before `committed`, and its ancestors and itself from `start` on */
  long rows, committed, start, heads, kv, d;
} Pass;

static inline long parts(long n, long size) { return (n + size - 1) / size; }

/* ---- sums[t] = sum over steps of a[step] b[step, t], for up to 4 tiles t that share a. Tiles of
 * a have `rows` rows of 32 bfloat16, those of b 16 rows of 16 pairs. ---- */

typedef struct { const bf16 *at; long step, apart; } Tiles;

static void configure(long rows) {
  struct { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } c;
  memset(&c, 0, sizeof c);
  c.palette = 1;
  for (int t = 0; t < 8; t++) {
    c.rows[t] = t < 5 ? rows : 16;
    c.bytes[t] = 64;
  }
  _tile_loadconfig(&c);
}

static inline void multiply(float *sums, Tiles a, Tiles b, long steps, long wide, int add) {
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  if (add) {
    _tile_loadd(0, sums, 64);
    if (wide > 1) _tile_loadd(1, sums + 256, 64);
    if (wide > 2) _tile_loadd(2, sums + 512, 64);
    if (wide > 3) _tile_loadd(3, sums + 768, 64);
  }
  for (; steps--; a.at += a.step, b.at += b.step) {
    _tile_loadd(4, a.at, 64);
    _tile_loadd(5, b.at, 64); _tile_dpbf16ps(0, 4, 5);
    if (wide > 1) { _tile_loadd(6, b.at + b.apart, 64); _tile_dpbf16ps(1, 4, 6); }
    if (wide > 2) { _tile_loadd(7, b.at + 2 * b.apart, 64); _tile_dpbf16ps(2, 4, 7); }
    if (wide > 3) { _tile_loadd(5, b.at + 3 * b.apart, 64); _tile_dpbf16ps(3, 4, 5); }
  }
  _tile_stored(0, sums, 64);
  if (wide > 1) _tile_stored(1, sums + 256, 64);
  if (wide > 2) _tile_stored(2, sums + 512, 64);
  if (wide > 3) _tile_stored(3, sums + 768, 64);
}

/* ---- packing ---- */

/* Keys as the right side of the scores: by 16 keys and 32 of d, pairs [16 of d, 16 keys, 2]. What
 * lies behind the last key repeats it, and what lies behind d is 0. Values, which are packed next,
 * are prefetched too.
 */
static void pack_keys(bf16 *to, const bf16 *keys, long step, long end, long blocks, long d) {
  for (long at = 0; at < 16 * blocks; at += 16) {
    for (long n = at + AHEAD; n < at + AHEAD + 16; n++)
      for (long i = 0; i < d; i += 32) {
        _mm_prefetch((const char *)(keys + n * step + i), _MM_HINT_T0);
        _mm_prefetch((const char *)(keys + n * step + step / 2 + i), _MM_HINT_T0);
      }
    for (long i = 0; i < 32 * parts(d, 32); i += 8, to += TILE / 4) {
      __m512i x[4], t[4];
      for (int j = 0; j < 4; j++) {
        x[j] = _mm512_setzero_si512();
        for (int lane = 0; i < d && lane < 4; lane++) {
          const bf16 *key = keys + least(at + 4 * lane + j, end - 1) * step + i;
          x[j] = _mm512_mask_broadcast_i32x4(x[j], 0xf << 4 * lane,
                                             _mm_loadu_si128((const __m128i *)key));
        }
      }
      for (int j = 0; j < 4; j += 2) {
        t[j] = _mm512_unpacklo_epi32(x[j], x[j + 1]);
        t[j + 1] = _mm512_unpackhi_epi32(x[j], x[j + 1]);
      }
      for (int j = 0; j < 2; j++) {
        _mm512_store_si512(to + 64 * j, _mm512_unpacklo_epi64(t[j], t[j + 2]));
        _mm512_store_si512(to + 64 * j + 32, _mm512_unpackhi_epi64(t[j], t[j + 2]));
      }
    }
  }
}

/* Values of the text positions `at` .. as the right side of their sum: by 32 positions and 16 of d,
 * pairs [16 of positions, 16 of d, 2]; 0 from the position `end` on. Positions from `committed` on
 * are the cache rows `start + path[..]`, or, without a path, the ones of their number.
 */
static void pack_values(const Pass *p, bf16 *to, const bf16 *values, long at, long end,
                        long blocks, const int32_t *path) {
  static const uint16_t pairs[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_loadu_si512(pairs);
  const long step = 2 * p->kv * p->d, groups = parts(p->d, 16);
  for (const bf16 *last = to + blocks * groups * TILE; to < last; to += (groups - 1) * TILE)
    for (long pair = 0; pair < 16; pair++, at += 2, to += 32) {
      const bf16 *row[2];
      for (int i = 0; i < 2; i++) {
        const long text = least(at + i, end - 1);
        row[i] = values + (path && text >= p->committed ? p->start + path[text - p->committed]
                                                        : text) * step;
      }
      for (long g = 0; g < groups; g++) {
        const __mmask16 lanes = first(p->d - 16 * g);
        __m512i x = _mm512_maskz_loadu_epi16(at < end ? lanes : 0, row[0] + 16 * g);
        /* the second row goes to the upper lanes, from 16 elements before it */
        x = _mm512_mask_loadu_epi16(x, (__mmask32)(at + 1 < end ? lanes : 0) << 16,
                                    row[1] + 16 * g - 16);
        _mm512_store_si512(to + g * TILE, _mm512_permutexvar_epi16(order, x));
      }
    }
}

/* 16 queries from the query `from` of a key head on, by 32 of d; all rows' queries are counted. */
static void pack_queries(const Pass *p, bf16 *to, long head, long from, long count) {
  const long group = p->heads / p->kv;
  for (long i = 0; i < p->d; i += 32, to += TILE)
    for (long n = 0; n < count; n++) {
      const long row = (from + n) / group, of = head * group + (from + n) % group;
      const __mmask32 lanes = p->d - i >= 32 ? ~0u : (1u << (p->d - i)) - 1;
      _mm512_store_si512(to + 32 * n, _mm512_maskz_loadu_epi16(
          lanes, p->query + (row * p->heads + of) * p->d + i));
    }
}

/* ---- softmax ---- */

/* Rounds to bfloat16, and leaves what is lost. */
static inline __m256i rounded(__m512 *x) {
  const __m256i half = (__m256i)_mm512_cvtneps_pbh(*x);
  *x = _mm512_sub_ps(*x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)));
  return half;
}

/* The scores of a query's first `length` positions become weights, 0 from there to `span`.
 *
 * Tiles hold 16 positions in float32; afterwards every other one holds the weights of 32 in
 * bfloat16, and the next one what their rounding has lost. `scores` is the query's row of the
 * first. Gives 1 over the sum.
 */
static float softmax(float *scores, long length, long span, float scale) {
  __m512 most = _mm512_set1_ps(-INFINITY), sums = _mm512_setzero_ps();
  for (long j = 0; j < length; j += 16)
    most = _mm512_mask_max_ps(most, first(length - j), most, _mm512_load_ps(scores + 16 * j));
  const __m512 base = _mm512_set1_ps(scale * 1.44269504f);
  const __m512 less = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(most)), base);
  for (long j = 0; j < span; j += 32) {
    __m512 x[2];
    for (int i = 0; i < 2; i++) {
      x[i] = _mm512_fmsub_ps(_mm512_load_ps(scores + 16 * (j + 16 * i)), base, less);
      const long left = length - j - 16 * i;
      x[i] = _mm512_maskz_mov_ps(left > 0 ? first(left) : 0, power(x[i]));
      sums = _mm512_add_ps(sums, x[i]);
    }
    for (int i = 0; i < 2; i++) { /* the weights, then what is lost */
      const __m256i low = rounded(x), high = rounded(x + 1);
      _mm512_store_si512(scores + 16 * (j + 16 * i), _mm512_inserti64x4(
          _mm512_castsi256_si512(low), high, 1));
    }
  }
  return 1 / _mm512_reduce_add_ps(sums);
}

/* ---- rows ---- */

/* The rows of the pass that a row sees, in the order of the text; gives how many. */
static long path_of(const Pass *p, long row, int32_t *path) {
  long depth = 0;
  for (long at = row; at >= 0; at = p->parent[at]) depth++;
  for (long at = row, i = depth; at >= 0; at = p->parent[at]) path[--i] = at;
  return depth;
}

/* Adds the weighted values of `blocks` blocks of 32 positions, from the block `from` on, to the
 * sums [2, groups] of some queries: of the weights, and of what their rounding has lost.
 */
static void add_values(const Pass *p, float *sums, const float *scores, const bf16 *values,
                       long from, long blocks, long queries) {
  const long groups = parts(p->d, 16);
  configure(queries);
  for (int half = 0; half < 2; half++)
    for (long g = 0; g < groups; g += 4) {
      const Tiles a = {(const bf16 *)scores + (2 * from + half) * TILE, 2 * TILE, 0};
      const Tiles b = {values + g * TILE, groups * TILE, TILE};
      multiply(sums + (half * groups + g) * 256, a, b, blocks, least(4, groups - g), from > 0);
    }
}

static void emit(const Pass *p, const float *sums, float share, long row, long head) {
  const long groups = parts(p->d, 16);
  bf16 *out = p->out + (row * p->heads + head) * p->d;
  for (long g = 0; g < groups; g++) {
    const __m512 sum = _mm512_add_ps(_mm512_load_ps(sums + 256 * g),
                                     _mm512_load_ps(sums + 256 * (groups + g)));
    store(out + 16 * g, _mm512_mul_ps(sum, _mm512_set1_ps(share)), first(p->d - 16 * g));
  }
}

typedef struct { bf16 *keys, *values, *tail, *queries; float *scores, *sums; } Room;

/* This thread's, kept from call to call. */
static Room room_for(const Pass *p, long span) {
  static _Thread_local bf16 *room;
  static _Thread_local long size;
  const long groups = parts(p->d, 16), chunks = parts(p->d, 32);
  const long need[] = {span / 16 * chunks, span / 32 * groups, (parts(p->rows, 32) + 1) * groups,
                       chunks, span / 16, 2 * groups};
  long tiles = 0;
  for (int i = 0; i < 6; i++) tiles += need[i];
  if (size < tiles) {
    free(room);
    size = tiles + tiles / 2;
    room = aligned_alloc(64, size * TILE * sizeof(bf16));
  }
  bf16 *at[6] = {room};
  for (int i = 1; i < 6; i++) at[i] = at[i - 1] + need[i - 1] * TILE;
  return (Room){at[0], at[1], at[2], at[3], (float *)at[4], (float *)at[5]};
}

/* Up to 16 queries of one key head, from the query `from` on. */
static void attend(const Pass *p, Room room, long head, long from, long count, long span) {
  const long chunks = parts(p->d, 32), group = p->heads / p->kv, before = p->committed / 32;
  const bf16 *values = p->cache + (p->kv + head) * p->d;
  int32_t path[p->rows];
  float share[16];
  pack_queries(p, room.queries, head, from, count);
  configure(count);
  for (long block = 0; block < span / 16; block += 4) {
    const Tiles a = {room.queries, TILE, 0};
    const Tiles b = {room.keys + block * chunks * TILE, TILE, chunks * TILE};
    multiply(room.scores + block * 256, a, b, chunks, least(4, span / 16 - block), 0);
  }
  for (long n = 0; n < count; n++) {
    const long row = (from + n) / group;
    long depth = row + 1;
    float *scores = room.scores + 16 * n;
    if (p->parent) {
      depth = path_of(p, row, path);
      for (long i = 0; i < depth; i++) {
        const long to = p->committed + i, at = p->start + path[i];
        scores[to / 16 * 256 + to % 16] = scores[at / 16 * 256 + at % 16];
      }
    }
    share[n] = softmax(scores, p->committed + depth, span, p->scale);
  }
  /* what all rows see alike, at the same positions */
  add_values(p, room.sums, room.scores, room.values, 0, p->parent ? before : span / 32, count);
  for (long n = 0, next; p->parent && n < count; n = next) {
    const long row = (from + n) / group, length = p->committed + path_of(p, row, path);
    const long blocks = parts(length, 32) - before;
    next = least(count, (row + 1) * group - from);
    pack_values(p, room.tail, values, 32 * before, length, blocks, path);
    add_values(p, room.sums + 16 * n, room.scores + 16 * n, room.tail, before, blocks, next - n);
  }
  for (long n = 0; n < count; n++)
    emit(p, room.sums + 16 * n, share[n], (from + n) / group, head * group + (from + n) % group);
}

/* Whether the rows of the pass hold finite values for one head. */
static int all_finite(const Pass *p, const bf16 *values) {
  const __m512i infinity = _mm512_set1_epi16(0x7f80);
  __mmask32 other = 0;
  for (long row = p->start; row < p->start + p->rows; row++)
    for (long i = 0; i < p->d; i += 32) {
      const __mmask32 lanes = p->d - i >= 32 ? ~0u : (1u << (p->d - i)) - 1;
      const __m512i x = _mm512_maskz_loadu_epi16(lanes, values + row * 2 * p->kv * p->d + i);
      other |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, infinity), infinity);
    }
  return !other;
}

void attend_rows(bf16 *out, const bf16 *query, const bf16 *cache, const int32_t *parent,
                 float scale, long rows, long committed, long start, long heads, long kv, long d) {
  const Pass pass = {out, query, cache, parent, scale, rows, committed, start, heads, kv, d};
  int32_t above[rows];
  for (long row = 0; row < rows; row++) above[row] = row - 1;
  const long end = start + rows, span = 32 * parts(end, 32), queries = rows * (heads / kv);
#pragma omp parallel for schedule(static) if (rows * end >= 4096)
  for (long head = 0; head < kv; head++) {
    const bf16 *keys = cache + head * d, *values = keys + kv * d;
    Pass own = pass;
    const Pass *p = &own;
    if (!parent && rows > 1 && !all_finite(p, values)) own.parent = above;
    const Room room = room_for(p, span);
    pack_keys(room.keys, keys, 2 * kv * d, end, span / 16, d);
    pack_values(p, room.values, values, 0, p->parent ? committed : end,
                p->parent ? committed / 32 : span / 32, 0);
    for (long from = 0; from < queries; from += 16)
      attend(p, room, head, from, least(16, queries - from), span);
    _tile_release();
  }
}
