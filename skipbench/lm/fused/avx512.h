/* What the kernels for AVX-512 bf16 share. */
#include <immintrin.h>
#include <stdint.h>

typedef uint16_t bf16;

static inline long least(long a, long b) { return a < b ? a : b; }

/* A mask of the first lanes; of all 16 where there are more. */
static inline __mmask16 first(long lanes) { return (1u << least(lanes, 16)) - 1; }

static inline __m512 wide(const bf16 *p, __mmask16 mask) {
  const __m512i half = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(half, 16));
}

static inline void store(bf16 *p, __m512 v, __mmask16 mask) {
  _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(v));
}

/* As it would be read again from memory. */
static inline __m512 rounded(__m512 v) {
  __m512i half = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(v));
  return _mm512_castsi512_ps(_mm512_slli_epi32(half, 16));
}

static inline __m256 halves(__m512 v) {
  const __m512d doubles = _mm512_castps_pd(v);
  return _mm256_add_ps(_mm512_castps512_ps256(v),
                       _mm256_castpd_ps(_mm512_extractf64x4_pd(doubles, 1)));
}

/* The sums of the lanes of four vectors, in the same order for each. */
static inline __m128 four_sums(const __m512 v[4]) {
  const __m256 low = _mm256_hadd_ps(halves(v[0]), halves(v[1]));
  const __m256 all = _mm256_hadd_ps(low, _mm256_hadd_ps(halves(v[2]), halves(v[3])));
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

/* Rows and columns of 16 x 16 change places. */
static inline void transpose(__m512i a[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) {
      a[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      a[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 16; j += 8) {
      t[j + i] = _mm512_shuffle_i32x4(a[j + i], a[j + i + 4], 0x88);
      t[j + i + 4] = _mm512_shuffle_i32x4(a[j + i], a[j + i + 4], 0xdd);
    }
  for (int i = 0; i < 8; i++) {
    a[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    a[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

/* 2^x for x <= 0, within 2^-22. */
static inline __m512 power(__m512 x) {
  const float minimax[] = {0.00187757669f, 0.00898934063f, 0.0558263175f,
                           0.240153611f,   0.693153083f,   0.99999994f};
  const __m512 r = _mm512_sub_ps(x, _mm512_roundscale_ps(x, 1)); /* from 0 to 1 */
  __m512 sum = _mm512_set1_ps(minimax[0]);
  for (int i = 1; i < 6; i++) sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(minimax[i]));
  return _mm512_scalef_ps(sum, x); /* times 2^floor(x) */
}

/* 2^-22 and less of e^x is lost. */
static inline __m512 exponential(__m512 x) {
  const float taylor[] = {1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1, 1};
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 sum = _mm512_set1_ps(1.f / 720);
  for (int i = 0; i < 6; i++) sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(taylor[i]));
  return _mm512_scalef_ps(sum, n);
}

/* silu(x) * up, with silu rounded before. */
static inline __m512 silu_times_up(__m512 x, __m512 up) {
  /* beyond the bounds e^-x is 0 or infinite */
  const __m512 least = _mm512_set1_ps(-128), most = _mm512_set1_ps(128);
  const __m512 less = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), x), least);
  const __m512 power = exponential(_mm512_min_ps(less, most));
  return _mm512_mul_ps(rounded(_mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1), power))), up);
}
