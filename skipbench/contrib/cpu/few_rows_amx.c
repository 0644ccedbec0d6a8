/* y = x W^T + bias + residual in bfloat16 with AMX, from weights as Hugging Face keeps them.
 *
 * An output is the sum over `in` in one order, in float32, rounded once. That order depends on
 * nothing else: a row has the same bits alone and among others, in any place of a block and with
 * any number of threads. One row costs what reading the weights costs, and so do 16.
 */
#include "amx.h"

typedef struct { const Half *w, *bias; long in, out; } Weight; /* [out, in]; [out] or null */
/* [rows, out]; [rows, out] or null; [rows, in] */
typedef struct { Half *y; const Half *residual, *x; long rows; } Rows;

/* Writes the outputs `o`, `o + 1` ... of one row, at most 16. */
static inline void put(const Weight *w, const Rows *p, Vec sums, long row, long o) {
  if (w->bias) sums += load(w->bias, o, w->out, 1);
  if (p->residual) sums += load(p->residual, row * w->out + o, w->out, 1);
  store(p->y, row * w->out + o, w->out, sums, 1);
}

/* x as tiles want it: by 16 rows and 32 inputs, pairs of inputs [16, columns, 2], the rest 0. */
static Half *packed(const Weight *w, const Rows *p, long steps, long columns) {
  Half *const temp = kept(parts(p->rows, 16) * steps * columns * 64, 0), *to = temp;
  for (long row = 0; row < p->rows; row += 16)
    for (long k = 0; k < w->in; k += 32, to += columns * 32) {
      const __mmask32 lanes = first_of_32(w->in - k);
      __m512i a[16];
      for (long r = 0; r < columns; r++)
        a[r] = _mm512_maskz_loadu_epi16(row + r < p->rows ? lanes : 0,
                                        p->x + (row + r) * w->in + k);
      if (columns > 1) transpose(a);
      for (long r = 0; r < columns; r++) _mm512_store_si512(to + r * 32, a[r]);
    }
  return temp;
}

/* Sums of a block [2 of rows, 2 of outputs, 16, columns], from row `at` and outputs o0 and o1 on. */
typedef struct { float sums[4][256] __attribute__((aligned(64))); long at, o0, o1; } Block;

/* Writes the outputs o0 .. and o1 .. of one row. */
static inline void put_both(const Weight *w, const Rows *p, const Block *b, Vec x, Vec y,
                            long row) {
  if (b->o1 != b->o0 + 16 || w->bias) {
    put(w, p, x, row, b->o0);
    put(w, p, y, row, b->o1);
    return;
  }
  const long at = row * w->out + b->o0;
  if (p->residual) {
    x += load(p->residual, at, 16, 1);
    y += load(p->residual, at + 16, 16, 1);
  }
  _mm512_storeu_si512(p->y + at, (__m512i)_mm512_cvtne2ps_pbh(y, x));
}

/* Writes one of a block's two halves of rows. */
static inline void put_half(const Weight *w, const Rows *p, const Block *b, long columns,
                            int half) {
  const long row = b->at + 16 * half, rows = least(columns, p->rows - row);
  const float *sums = b->sums[2 * half];
  __m512i x[16], y[16];
  if (rows <= 0) return;
  if (columns == 1) {
    put_both(w, p, b, _mm512_load_ps(sums), _mm512_load_ps(sums + 256), row);
    return;
  }
  for (int i = 0; i < 16; i++) {
    x[i] = _mm512_load_si512(sums + 16 * i);
    y[i] = _mm512_load_si512(sums + 256 + 16 * i);
  }
  transpose(x);
  transpose(y);
  if (rows == 16) /* unrolled, from registers */
    for (int r = 0; r < 16; r++) put_both(w, p, b, (__m512)x[r], (__m512)y[r], row + r);
  else
    for (long r = 0; r < rows; r++) put_both(w, p, b, (__m512)x[r], (__m512)y[r], row + r);
}

/* Writes silu(gate) * up of one of a block's two halves of rows, as the second product of an MLP
 * wants its x: tiles have the outputs as rows, so that a pair of outputs is a pair of its inputs. */
static inline void put_gated(const Weight *w, const Rows *p, const Block *b, Half *inner, int half) {
  const long row = b->at + 16 * half, steps = w->out / 64;
  const float *gate = b->sums[2 * half], *up = gate + 256;
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i pairs = _mm512_or_si512(
      lanes, _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(16)), 16));
  if (row >= p->rows) return;
  Half *to = inner + (row / 16 * steps * 32 + b->o0) * 16; /* [steps, 16, 16, 2] of 16 rows */
  for (int i = 0; i < 16; i += 2, to += 32) {
    Vec x[2];
    for (int j = 0; j < 2; j++)
      x[j] = silu_times_up(rounded(_mm512_load_ps(gate + 16 * (i + j)), 1),
                           rounded(_mm512_load_ps(up + 16 * (i + j)), 1), 1);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0])));
  }
}

/* The products of rows that are packed in tiles; with `inner`, of an MLP's first weight, whose second
 * half of outputs belongs to the first, to there. */
static inline __attribute__((always_inline)) void multiply(
    const Weight *w, const Rows *p, const Half *packed_x, const long columns, Half *inner) {
  const long rows = p->rows, outputs = least(w->out, 16), stride = w->in * 2;
  const long steps = (w->in + 31) / 32, tail = w->in % 32, row = columns * 4, tile = columns * 32;
  const long apart = inner ? w->out / 2 : 16, each = inner ? 16 : 32, end = inner ? apart : w->out;
#define PUT(HALF)                                                                                  \
  (inner ? put_gated(w, p, before, inner, HALF) : put_half(w, p, before, columns, HALF))
#pragma omp parallel if (w->out >= 64)
  {
    Half rest[2][16 * 32] = {0}; /* the last inputs, filled up with 0 */
    Block blocks[2], *now = blocks, *before = blocks + 1;
    before->at = rows;
    configure(outputs, columns);
#pragma omp for schedule(static)
    for (long o = 0; o < end; o += each) {
      /* the last 16 outputs may overlap those before: they have the same bits again */
      now->o0 = least(o, w->out - outputs), now->o1 = least(o + apart, w->out - outputs);
      const Half *w0 = w->w + now->o0 * w->in, *w1 = w->w + now->o1 * w->in;
      for (long i = 0; tail && i < outputs; i++) {
        memcpy(rest[0] + 32 * i, w0 + (i + 1) * w->in - tail, tail * 2);
        memcpy(rest[1] + 32 * i, w1 + (i + 1) * w->in - tail, tail * 2);
      }
      const char *next[] = {(const char *)(w0 + each * w->in), (const char *)(w1 + each * w->in)};
      const long lines = w->in / 2, turns = (rows + 31) / 32 * steps;
      for (long at = 0, line = 0; at < rows; at += 32) {
        const Half *x0 = packed_x + at / 16 * steps * tile, *x1 = x0 + steps * tile;
        const int both = at + 16 < rows;
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
        for (long k = 0; k < steps; k++, x0 += tile, x1 += tile) {
          /* lines of the next outputs, as many in every block: memory reads while tiles multiply */
          for (const long turn = at / 32 * steps + k + 1; line < lines * turn / turns; line++) {
            _mm_prefetch(next[0] + 64 * line, _MM_HINT_T1);
            _mm_prefetch(next[1] + 64 * line, _MM_HINT_T1);
          }
          /* x is read past the L1 cache, which keeps these weights for the next rows */
          const int last = tail && k == steps - 1;
          _tile_loadd(4, last ? rest[0] : w0 + 32 * k, last ? 64 : stride);
          _tile_stream_loadd(6, x0, row);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(5, last ? rest[1] : w1 + 32 * k, last ? 64 : stride);
          _tile_dpbf16ps(1, 5, 6);
          if (both) {
            _tile_stream_loadd(7, x1, row);
            _tile_dpbf16ps(2, 4, 7); _tile_dpbf16ps(3, 5, 7);
          }
          /* while tiles multiply, when the sums have come, in two parts that hold up little */
          if (k == steps / 3) PUT(0);
          if (k == 2 * steps / 3) PUT(1);
        }
        now->at = at;
        _tile_stored(0, now->sums[0], row); _tile_stored(1, now->sums[1], row);
        if (both) { _tile_stored(2, now->sums[2], row); _tile_stored(3, now->sums[3], row); }
        Block *const written = before;
        before = now, now = written;
        now->o0 = before->o0, now->o1 = before->o1;
      }
    }
    PUT(0);
    PUT(1);
    _tile_release();
  }
}

void multiply_tiles(const Weight *w, Half *y, const Half *residual, const Half *x, long rows) {
  const Rows p = {y, residual, x, rows};
  const long columns = rows == 1 ? 1 : 16;
  multiply(w, &p, packed(w, &p, (w->in + 31) / 32, columns), columns, 0);
}

/* y = x + down(silu(gate) * up): between the products nothing is laid out as rows. For more than one
 * row, weights without bias, and inner outputs that are a multiple of 32. */
void mlp_tiles(const Weight *gate_up, const Weight *down, Half *y, const Half *residual,
                    const Half *x, long rows) {
  const Rows p = {y, residual, x, rows};
  Half *const inner = kept(parts(rows, 16) * 32 * down->in, 1);
  multiply(gate_up, &p, packed(gate_up, &p, (gate_up->in + 31) / 32, 16), 16, inner);
  multiply(down, &p, inner, 16, 0);
}
