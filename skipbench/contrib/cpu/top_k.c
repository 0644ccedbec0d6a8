/* The k largest numbers of bfloat16 rows, in one pass over them: what is not above the k-th largest
 * so far is left out by one comparison per 32 numbers.
 */
#include "vec.h"

/* The bits of numbers as integers with the same order; 0 and -0 are equal. */
static inline __m512i ordered(__m512i bits) {
  bits = _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(bits, _mm512_set1_epi16(0x7fff)), bits);
  const __m512i sign = _mm512_srai_epi16(bits, 15);
  return _mm512_xor_si512(bits, _mm512_and_si512(sign, _mm512_set1_epi16(0x7fff)));
}

/* index [rows, 1 + k] of x [rows, width]: the k largest behind the largest, which is -1 where it is
 * not finite or the row has a NaN; of equal ones the first comes first.
 */
void top_k_bfloat16(int32_t *index, const Half *x, long rows, long width, long k) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff), infinity = _mm512_set1_epi16(0x7f80);
  const long most = k ? k : 1;
  for (; rows--; x += width, index += 1 + k) {
    int16_t value[most];
    int32_t place[most];
    long count = 0; /* numbers found, the largest first */
    __mmask32 nan = 0;
    for (long at = 0; at < width; at += 32) {
      const __mmask32 lanes = first_of_32(width - at);
      const __m512i bits = _mm512_maskz_loadu_epi16(lanes, x + at), keys = ordered(bits);
      nan |= _mm512_cmpgt_epi16_mask(_mm512_and_si512(bits, magnitude), infinity);
      __mmask32 larger = lanes;
      if (count == most)
        larger &= _mm512_cmpgt_epi16_mask(keys, _mm512_set1_epi16(value[most - 1]));
      if (!larger) continue;
      int16_t key[32];
      _mm512_storeu_si512(key, keys);
      for (; larger; larger &= larger - 1) {
        const int lane = __builtin_ctz(larger);
        if (count == most && key[lane] <= value[most - 1]) continue;
        long i = count < most ? count++ : most - 1;
        for (; i && value[i - 1] < key[lane]; i--) {
          value[i] = value[i - 1];
          place[i] = place[i - 1];
        }
        value[i] = key[lane];
        place[i] = at + lane;
      }
    }
    /* of -infinity and +infinity the ordered bits */
    const int finite = !nan && value[0] > (int16_t)0x807f && value[0] < 0x7f80;
    index[0] = finite ? place[0] : -1;
    for (long i = 0; i < k; i++) index[1 + i] = place[i];
  }
}

/* Per row of x [rows, width], at least two wide, the index of the largest number, it, and the next
 * one.
 */
void two_best_bfloat16(float *found, const Half *x, long rows, long width) {
  for (; rows--; x += width, found += 3) {
    int32_t best[3];
    top_k_bfloat16(best, x, 1, width, 2);
    found[0] = best[1];
    for (int i = 1; i <= 2; i++) found[i] = number(raw(x, best[i], 1));
  }
}
