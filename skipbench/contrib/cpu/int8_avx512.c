/* Products in 8 bits with AVX-512 VNNI and AMX, which multiply bytes with a sign by bytes without:
 * the upper byte of x + 2^15, and the lower one. What 2^15 adds goes off again; sums modulo 2^32 are
 * enough, as the result is of 32 bits.
 */
#include "amx.h"
#include "int8.h"

#define AHEAD 4096   /* bytes of a stream from what is read to what is prefetched */
#define TILES_AHEAD 8 /* steps of tiles likewise */

#define VNNI __attribute__((target("avx512f,avx512bw,avx512vnni")))

/* The sums of the lanes of four vectors. */
VNNI INLINE __m128i whole_sums(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i lanes =
      _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half =
      _mm256_add_epi32(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

VNNI INLINE void vnni(const Weight *w, Rows p, long width, long o, long part, const int rows,
                      const int streams) {
  const int8_t *at[STREAMS];
  __m512i upper[4][STREAMS], lower[4][STREAMS];
  for (int j = 0; j < streams; j++) {
    at[j] = w->w + least(o + j * part, w->out - 1) * width;
    for (int r = 0; r < rows; r++) upper[r][j] = lower[r][j] = _mm512_setzero_si512();
  }
  for (long k = 0; k < width; k += STEP) {
    __m512i v[STREAMS];
    for (int j = 0; j < streams; j++) {
      _mm_prefetch((const char *)at[j] + k + AHEAD, _MM_HINT_T0);
      v[j] = _mm512_loadu_si512(at[j] + k);
    }
    for (int r = 0; r < rows; r++) {
      const uint8_t *x = (const uint8_t *)(p.x + r * width) + k;
      const __m512i high = _mm512_loadu_si512(x), low = _mm512_loadu_si512(x + width);
      for (int j = 0; j < streams; j++) {
        upper[r][j] = _mm512_dpbusd_epi32(upper[r][j], high, v[j]);
        lower[r][j] = _mm512_dpbusd_epi32(lower[r][j], low, v[j]);
      }
    }
  }
  for (int r = 0; r < rows; r++) {
    __m512i both[STREAMS];
    int32_t four[STREAMS];
    for (int j = 0; j < STREAMS; j++)
      both[j] = j < streams ? _mm512_add_epi32(_mm512_slli_epi32(upper[r][j], 8), lower[r][j])
                            : _mm512_setzero_si512();
    _mm_storeu_si128((__m128i *)four, whole_sums(both[0], both[1], both[2], both[3]));
    for (long j = 0, out = o; j < streams && out < w->out; j++, out += part) {
      const uint32_t sum = (uint32_t)four[j] - ((uint32_t)w->sums[out] << 15);
      p.sums[r * w->out + out] = (float)(int32_t)sum * (w->scale[out] * p.scales[r]);
    }
  }
}

VNNI void vnni_few(const Weight *w, Rows p, long width, long o, long part, int rows) {
  if (rows == 2) vnni(w, p, width, o, part, 2, STREAMS);
  else vnni(w, p, width, o, part, 1, STREAMS);
}

VNNI void vnni_several(const Weight *w, Rows p, long width, long o, long part, int rows) {
#define SEVERAL(ROWS) vnni(w, p, width, o, part, ROWS, 2)
  switch (rows) { CASE(1, SEVERAL) CASE(2, SEVERAL) CASE(3, SEVERAL) CASE(4, SEVERAL) }
}

/* ---- AMX: a tile has the sums of 16 outputs; 64 inputs of 8 rows, as two columns each. ---- */

#define AMX __attribute__((target("avx512f,avx512bw,avx512vnni,amx-tile,amx-int8")))

/* Writes rows from the sums [outputs, columns] of a tile. */
AMX static void put_tile(const Weight *w, Rows p, const int32_t *tile, long rows, long columns,
                         long o) {
  const __mmask16 lanes = (1u << least(w->out, 16)) - 1;
  const __m512i zero = _mm512_setzero_si512(), to = _mm512_mullo_epi32(
      _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
      _mm512_set1_epi32((int)columns));
  const __m512i less = _mm512_slli_epi32(_mm512_maskz_loadu_epi32(lanes, w->sums + o), 15);
  const __m512 scale = _mm512_maskz_loadu_ps(lanes, w->scale + o);
  for (long r = 0; r < rows; r++) {
    const __m512i upper = _mm512_mask_i32gather_epi32(zero, lanes, to, tile + 2 * r, 4);
    const __m512i lower = _mm512_mask_i32gather_epi32(zero, lanes, to, tile + 2 * r + 1, 4);
    const __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower), less);
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(p.scales[r]));
    _mm512_mask_storeu_ps(p.sums + r * w->out + o, lanes,
                          _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor));
  }
}

/* Rows of bytes as tiles want them: by 8 rows and 64 inputs, fours of inputs [16, rows, 2, 4]. */
void pack(uint8_t *to, const uint8_t *x, long rows, long most, long width) {
  for (long row = 0; row < rows; row += most, to += most * 2 * width)
    for (long r = 0; r < least(most, rows - row); r++, x += 2 * width)
      for (long k = 0; k < width; k += 4) {
        memcpy(to + (k / 4 * most + r) * 8, x + k, 4);
        memcpy(to + (k / 4 * most + r) * 8 + 4, x + width + k, 4);
      }
}

AMX void tiles(const Weight *w, Rows p, const uint8_t *x, long rows, long most, long width) {
  const long outputs = least(w->out, 16), columns = 2 * most, row = 4 * columns, size = 16 * row;
  const long steps = width / 64, ahead = least(TILES_AHEAD, steps);
#pragma omp parallel if (w->out >= 64)
  {
    int32_t sums[4][256] __attribute__((aligned(64)));
    configure(outputs, columns);
#pragma omp for schedule(static)
    for (long o = 0; o < w->out; o += 32) {
      /* the last 16 outputs may overlap those before: they have the same bits again */
      const long at[] = {least(o, w->out - outputs), least(o + 16, w->out - outputs)};
      const int8_t *const begin = w->w + at[0] * width;
      for (long b = 0; b < rows; b += 2 * most) {
        const uint8_t *x0 = x + b * 2 * width, *x1 = x0 + steps * size;
        const int both = b + most < rows;
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
        for (long k = 0; k < steps; k++, x0 += size, x1 += size) {
          /* what is read TILES_AHEAD steps later, of this block or the next one */
          const int8_t *next = begin + 64 * (k + ahead) + (k + ahead < steps ? 0 : 31 * width);
          for (long i = 0; b == 0 && i < 32; i++)
            _mm_prefetch((const char *)next + i * width, _MM_HINT_T0);
          _tile_loadd(4, begin + 64 * k, width);
          _tile_loadd(5, w->w + at[1] * width + 64 * k, width);
          _tile_loadd(6, x0, row);
          _tile_dpbsud(0, 4, 6); _tile_dpbsud(1, 5, 6);
          if (both) {
            _tile_loadd(7, x1, row);
            _tile_dpbsud(2, 4, 7); _tile_dpbsud(3, 5, 7);
          }
        }
        _tile_stored(0, sums[0], row); _tile_stored(1, sums[1], row);
        _tile_stored(2, sums[2], row); _tile_stored(3, sums[3], row);
        for (int t = 0; t < (both ? 4 : 2); t++) {
          const long from = b + t / 2 * most;
          const Rows own = {p.sums + from * w->out, 0, p.scales + from};
          put_tile(w, own, sums[t], least(most, rows - from), columns, at[t % 2]);
        }
      }
    }
    _tile_release();
  }
}
