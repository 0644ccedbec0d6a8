/* y = x W^T + bias + residual from weights in 8 bits, one scale per output.
 *
 * A row of x becomes integers of up to 16 bits with one scale, as large as the sums allow: no sum
 * of 32 bits overflows. Integers add up alike in any order, so a row has the same bits alone and
 * among others, with any number of threads and with any kernel. Vectors read parts of the weight
 * side by side, each from its beginning to its end, as in few_rows.c.
 */
#include "int8.h"

/* ---- AVX2: products of 16 bits ---- */

INLINE void avx2_rows(const Weight *w, Rows p, long width, long o, long part, const int rows) {
  const int8_t *at[STREAMS];
  __m256i sums[2][STREAMS];
  for (int j = 0; j < STREAMS; j++) {
    at[j] = w->w + least(o + j * part, w->out - 1) * width;
    for (int r = 0; r < rows; r++) sums[r][j] = _mm256_setzero_si256();
  }
  for (long k = 0; k < width; k += 16)
    for (int j = 0; j < STREAMS; j++) {
      const __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(at[j] + k)));
      for (int r = 0; r < rows; r++) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(p.x + r * width + k));
        sums[r][j] = _mm256_add_epi32(sums[r][j], _mm256_madd_epi16(v, x));
      }
    }
  for (int r = 0; r < rows; r++) {
    const __m256i low = _mm256_hadd_epi32(sums[r][0], sums[r][1]);
    const __m256i all = _mm256_hadd_epi32(low, _mm256_hadd_epi32(sums[r][2], sums[r][3]));
    const __m128i upper = _mm256_extracti128_si256(all, 1);
    float four[STREAMS];
    _mm_storeu_ps(four, _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(all), upper)));
    for (long j = 0, out = o; j < STREAMS && out < w->out; j++, out += part)
      p.sums[r * w->out + out] = four[j] * (w->scale[out] * p.scales[r]);
  }
}

static void avx2(const Weight *w, Rows p, long width, long o, long part, int rows) {
  if (rows == 2) avx2_rows(w, p, width, o, part, 2);
  else avx2_rows(w, p, width, o, part, 1);
}

/* ---- a product ---- */

INLINE float largest_magnitude(const void *x, long from, long count, const int bf16) {
  uint32_t largest = 0; /* the bits of magnitudes have their order, NaN above all */
  for (long i = from; i < from + count; i++) {
    const uint32_t bits = raw(x, i, bf16) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return number(largest);
}

INLINE int32_t whole(float value) {
  int32_t bits;
  value += 0x1.8p23f;
  memcpy(&bits, &value, 4);
  return bits - 0x4b400000;
}

/* Writes one row as integers, or as their upper bytes and their lower ones, and gives its scale,
 * which is not finite where the row is not. What lies behind a row meets weights of 0. */
INLINE float quantized(int16_t *to, const void *x, long row, const Weight *w, long width,
                       const int bf16, const int bytes) {
  const float magnitude = largest_magnitude(x, row * w->in, w->in, bf16);
  const float times = magnitude > 1e-30f ? (float)w->most / magnitude : 0;
  uint8_t *const upper = (uint8_t *)to, *const lower = upper + width;
  for (long i = 0; i < w->in; i++) {
    const int32_t n = whole(number(raw(x, row * w->in + i, bf16)) * times);
    if (!bytes) to[i] = (int16_t)n;
    else upper[i] = (uint8_t)((n + 0x8000) >> 8), lower[i] = (uint8_t)n;
  }
  return magnitude / (float)w->most;
}

/* A kernel: the block of up to `most` rows and its streams, or none for tiles. */
typedef struct { Block *block; int bytes, most, streams; } Kernel;

static void multiply(const Weight *w, void *y, const void *residual, const void *x, long rows,
                     Kernel k) {
  const long width = parts(w->in, STEP) * STEP, blocks = parts(rows, k.most);
  const long most = parts(rows, blocks), packed = k.block ? 0 : blocks * most;
  int16_t *const temp =
      kept((rows + packed) * 2 * width + 4 * rows * (1 + (w->bf16 ? w->out : 0)), 0);
  int16_t *const tiled = temp + rows * width;
  float *const scales = (float *)(tiled + packed * width), *const sums = w->bf16 ? scales + rows : y;
  const Rows all = {sums, temp, scales};
  for (long row = 0; row < rows; row++) {
    int16_t *const to = temp + row * width;
    if (k.bytes) scales[row] = w->bf16 ? quantized(to, x, row, w, width, 1, 1)
                                       : quantized(to, x, row, w, width, 0, 1);
    else scales[row] = w->bf16 ? quantized(to, x, row, w, width, 1, 0)
                               : quantized(to, x, row, w, width, 0, 0);
  }
  const long part = parts(w->out, k.streams);
  if (!k.block) {
    pack((uint8_t *)tiled, (const uint8_t *)temp, rows, most, width);
    tiles(w, all, (const uint8_t *)tiled, rows, most, width);
  } else {
#pragma omp parallel for schedule(static) if (w->out >= 64)
    for (long o = 0; o < part; o++)
      for (long row = 0; row < rows; row += most) {
        const Rows p = {all.sums + row * w->out, all.x + row * width, all.scales + row};
        k.block(w, p, width, o, part, (int)least(most, rows - row));
      }
  }
  if (w->bf16) finish(y, sums, w->bias, residual, rows, w->out, 0, 1);
  else if (w->bias || residual) finish(y, sums, w->bias, residual, rows, w->out, 0, 0);
}

void int8_avx2(const Weight *w, void *y, const void *residual, const void *x, long rows) {
  multiply(w, y, residual, x, rows, (Kernel){avx2, 0, 2, STREAMS});
}

void int8_avx512(const Weight *w, void *y, const void *residual, const void *x, long rows) {
  multiply(w, y, residual, x, rows, rows > 2 ? (Kernel){vnni_several, 1, 4, 2}
                                             : (Kernel){vnni_few, 1, 2, STREAMS});
}

void int8_amx(const Weight *w, void *y, const void *residual, const void *x, long rows) {
  if (rows > VECTORS) multiply(w, y, residual, x, rows, (Kernel){0, 1, 8, 1});
  else int8_avx512(w, y, residual, x, rows);
}

/* ---- the weights ---- */

/* Writes a weight [out, in] as integers up to 127, filled up with 0, with one scale and one sum per
 * output. Gives the largest sum of magnitudes.
 */
int quantize_weight(int8_t *to, float *scale, int32_t *sums, const void *w, long in, long out,
                    int bf16) {
  const long width = parts(in, STEP) * STEP;
  int most = 0;
#pragma omp parallel for schedule(static) reduction(max : most)
  for (long o = 0; o < out; o++) {
    const float largest = bf16 ? largest_magnitude(w, o * in, in, 1)
                               : largest_magnitude(w, o * in, in, 0);
    const float step = (largest < SMALLEST ? SMALLEST : largest) / 127;
    int8_t *const own = to + o * width;
    int32_t total = 0, magnitudes = 0;
    for (long i = 0; i < width; i++) {
      own[i] = i < in ? (int8_t)whole(number(raw(w, o * in + i, bf16)) / step) : 0;
      total += own[i];
      magnitudes += abs(own[i]);
    }
    scale[o] = step;
    sums[o] = total;
    most = magnitudes > most ? magnitudes : most;
  }
  return most;
}
