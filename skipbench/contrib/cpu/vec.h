/* Vectors of float32 with AVX-512 bf16 or with AVX2, as a file is compiled: the sources of both are the
 * same. Numbers in memory are float32 or bfloat16, by `bf16`, a constant where functions are inlined;
 * with AVX-512 results are bfloat16: those in float32 have the bits of AVX2 on every processor.
 */
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
typedef uint16_t Half; /* bfloat16 */

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long parts(long n, long size) { return (n + size - 1) / size; }

INLINE const void *place(const void *at, long i, const int bf16) {
  return (const char *)at + i * (bf16 ? 2 : 4);
}

/* The bits of a number as float32. */
INLINE uint32_t raw(const void *at, long i, const int bf16) {
  return bf16 ? (uint32_t)((const Half *)at)[i] << 16 : ((const uint32_t *)at)[i];
}

INLINE float number(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

#define CASE(N, CALL) case N: CALL(N); break;

#ifdef __AVX512BF16__
#define LANES 16
#define V(NAME) _mm512_##NAME
typedef __m512 Vec;
#define DOTS 32 /* numbers that meet in one instruction */
typedef __m512bh Dots;
#define MOST 5 /* rows of a block: sums of four outputs each stay in registers */
#define WITH(N, CALL)                                                                              \
  switch (N) { CASE(1, CALL) CASE(2, CALL) CASE(3, CALL) CASE(4, CALL) CASE(5, CALL) }
/* Defines NAME_bfloat16, and with AVX2 NAME_float32: NAME of PARAMETERS and a constant. */
#define DTYPES(NAME, PARAMETERS, ...)                                                              \
  void NAME##_bfloat16 PARAMETERS { NAME(__VA_ARGS__, 1); }

/* A mask of the first lanes; of all 16 where there are more. */
INLINE __mmask16 first(long lanes) { return (1u << least(lanes, 16)) - 1; }
INLINE __mmask32 first_of_32(long lanes) { return lanes >= 32 ? ~0u : (1u << lanes) - 1; }

INLINE Vec widened(__m256i half) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* `n` numbers from the place `i` on, at most LANES; the others are 0. */
INLINE Vec load(const void *at, long i, long n, const int bf16) {
  if (!bf16) return _mm512_maskz_loadu_ps(first(n), place(at, i, 0));
  return widened(_mm256_maskz_loadu_epi16(first(n), place(at, i, 1)));
}

INLINE void store(void *at, long i, long n, Vec v, const int bf16) {
  _mm256_mask_storeu_epi16((Half *)at + i, first(n), (__m256i)_mm512_cvtneps_pbh(v));
}

/* As it would be read again from memory. */
INLINE Vec rounded(Vec v, const int bf16) { return widened((__m256i)_mm512_cvtneps_pbh(v)); }
INLINE Vec nearest(Vec v) { return _mm512_roundscale_ps(v, 0); }
/* v 2^n of whole n */
INLINE Vec scaled(Vec v, Vec n) { return _mm512_scalef_ps(v, n); }
/* The first `n` lanes; the others become 0. */
INLINE Vec only(Vec v, long n) { return _mm512_maskz_mov_ps(first(n), v); }

/* `n` numbers from the place `i` on, at most DOTS; the others are 0. */
INLINE Dots dots(const void *at, long i, long n, const int bf16) {
  return (Dots)_mm512_maskz_loadu_epi16(first_of_32(n), place(at, i, 1));
}

INLINE Vec dot(Vec sums, Dots a, Dots b) { return _mm512_dpbf16_ps(sums, a, b); }

INLINE __m256 halves(Vec v) {
  const __m512d doubles = _mm512_castps_pd(v);
  return _mm512_castps512_ps256(v) + _mm256_castpd_ps(_mm512_extractf64x4_pd(doubles, 1));
}
#else
#define LANES 8
#define V(NAME) _mm256_##NAME
typedef __m256 Vec;
#define DOTS 8
typedef Vec Dots;
#define MOST 3
#define WITH(N, CALL) switch (N) { CASE(1, CALL) CASE(2, CALL) CASE(3, CALL) }
#define DTYPES(NAME, PARAMETERS, ...)                                                              \
  void NAME##_float32 PARAMETERS { NAME(__VA_ARGS__, 0); }                                         \
  void NAME##_bfloat16 PARAMETERS { NAME(__VA_ARGS__, 1); }

INLINE Vec load(const void *at, long i, long n, const int bf16) {
  float rest[8] = {0};
  const void *p = place(at, i, bf16);
  if (n < 8) p = memcpy(rest, p, n * (bf16 ? 2 : 4));
  if (!bf16) return _mm256_loadu_ps(p);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}

/* As bfloat16 in the lower half of each lane, ties to even. */
INLINE __m256i narrowed(Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(near, nan, is_nan), 16);
}

INLINE Vec rounded(Vec v, const int bf16) {
  return bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(narrowed(v), 16)) : v;
}

INLINE void store(void *at, long i, long n, Vec v, const int bf16) {
  __m256i rest = _mm256_castps_si256(v);
  if (bf16) rest = _mm256_permute4x64_epi64(_mm256_packus_epi32(narrowed(v), narrowed(v)), 8);
  memcpy((void *)place(at, i, bf16), &rest, least(n, 8) * (bf16 ? 2 : 4));
}

INLINE Vec nearest(Vec v) { return _mm256_round_ps(v, 0); }

INLINE Vec two_to(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* by two factors: n exceeds the exponents of float32 */
INLINE Vec scaled(Vec v, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  return v * two_to(half) * two_to(_mm256_sub_epi32(whole, half));
}

INLINE Vec only(Vec v, long n) {
  const __m256i lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  return _mm256_and_ps(
      v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)least(n, 8)), lanes)));
}

/* of multiples of DOTS */
INLINE Dots dots(const void *at, long i, long n, const int bf16) { return load(at, i, 8, bf16); }
INLINE Vec dot(Vec sums, Dots a, Dots b) { return _mm256_fmadd_ps(a, b, sums); }
INLINE __m256 halves(Vec v) { return v; }
#endif

/* The sums of the lanes of four vectors, in the same order for each. */
INLINE __m128 four_sums(const Vec v[4]) {
  const __m256 low = _mm256_hadd_ps(halves(v[0]), halves(v[1]));
  const __m256 all = _mm256_hadd_ps(low, _mm256_hadd_ps(halves(v[2]), halves(v[3])));
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

/* The sum of the lanes, one after the other. */
INLINE float total(Vec v) {
  float lanes[LANES], sum = 0;
  V(storeu_ps)(lanes, v);
  for (int i = 0; i < LANES; i++) sum += lanes[i];
  return sum;
}

/* 2^-22 and less of e^x is lost; a NaN stays one. */
INLINE Vec exponential(Vec x) {
  const float taylor[] = {1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1, 1};
  x = V(min_ps)(V(set1_ps)(128), V(max_ps)(V(set1_ps)(-128), x));
  const Vec n = nearest(x * 1.44269504f);
  Vec r = V(fnmadd_ps)(n, V(set1_ps)(0.693145752f), x);
  r = V(fnmadd_ps)(n, V(set1_ps)(1.42860677e-6f), r);
  Vec sum = V(set1_ps)(1.f / 720);
  for (int i = 0; i < 6; i++) sum = V(fmadd_ps)(sum, r, V(set1_ps)(taylor[i]));
  return scaled(sum, n);
}

/* silu(x) * up, with silu rounded before. */
INLINE Vec silu_times_up(Vec x, Vec up, const int bf16) {
  return rounded(x / (1.f + exponential(V(setzero_ps)() - x)), bf16) * up;
}

#if LANES == 16
/* 2^x for x <= 0, within 2^-22. */
INLINE Vec power(Vec x) {
  const float minimax[] = {0.00187757669f, 0.00898934063f, 0.0558263175f,
                           0.240153611f,   0.693153083f,   0.99999994f};
  const Vec r = x - _mm512_roundscale_ps(x, 1); /* from 0 to 1 */
  Vec sum = _mm512_set1_ps(minimax[0]);
  for (int i = 1; i < 6; i++) sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(minimax[i]));
  return scaled(sum, x); /* times 2^floor(x) */
}

/* e^(scale (x - most)) for x <= most */
INLINE Vec power_below(Vec x, float most, float scale) {
  const float base = scale * 1.44269504f;
  return power(_mm512_fmsub_ps(x, _mm512_set1_ps(base), _mm512_set1_ps(most * base)));
}

/* The sum of such powers. */
INLINE float summed(Vec v) { return _mm512_reduce_add_ps(v); }
#else
INLINE Vec power_below(Vec x, float most, float scale) {
  return exponential(x * scale - most * scale);
}

INLINE float summed(Vec v) { return total(v); }
#endif

/* y [rows, out] = sums + bias + residual, rounded once; the last two may be null. */
INLINE void finish(void *y, const float *sums, const void *bias, const void *residual, long rows,
                   long out, const int bias_bf16, const int bf16) {
  for (long at = 0; at < rows * out; at += out)
    for (long o = 0; o < out; o += LANES) {
      Vec v = load(sums, at + o, out - o, 0);
      if (bias) v += load(bias, o, out - o, bias_bf16);
      if (residual) v += load(residual, at + o, out - o, bf16);
      store(y, at + o, out - o, v, bf16);
    }
}

/* Memory of this thread, kept from call to call: one piece, and another one beside it. */
static inline void *kept(long bytes, int which) {
  static _Thread_local void *temp[2];
  static _Thread_local long sizes[2];
  if (sizes[which] < bytes) {
    free(temp[which]);
    sizes[which] = parts(bytes + bytes / 2, 64) * 64;
    temp[which] = aligned_alloc(64, sizes[which]);
  }
  return temp[which];
}
