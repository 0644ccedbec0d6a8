/* The k largest numbers of rows, in one pass over them: a block without one above the k-th largest so
 * far is left out by its largest alone.
 */
#include "vec.h"

#define BLOCK 256
#define INFINITE 0x7f800000

/* The bits of a number as an integer with the same order, but for -0, which is -1. */
INLINE int32_t order(int32_t bits) { return bits ^ ((bits >> 31) & INT32_MAX); }

/* index [rows, 1 + k] of x [rows, width]: the k largest behind the largest, which is -1 where it is
 * not finite or the row has a NaN; of equal ones the first comes first.
 */
INLINE void top_k(int32_t *index, const void *x, long rows, long width, long k, const int bf16) {
  const long most = k ? k : 1;
  for (long row = 0; row < rows; row++, index += 1 + k) {
    int32_t value[most], found[most], magnitude = 0;
    long count = 0; /* numbers found, the largest first */
    for (long from = 0; from < width; from += BLOCK) {
      const long size = least(width - from, BLOCK), at = row * width + from;
      int32_t largest = INT32_MIN;
      for (long i = 0; i < size; i++) {
        const int32_t bits = (int32_t)raw(x, at + i, bf16), key = order(bits);
        largest = key > largest ? key : largest;
        magnitude = (bits & INT32_MAX) > magnitude ? bits & INT32_MAX : magnitude;
      }
      if (count == most && largest <= value[most - 1]) continue;
      for (long lane = 0; lane < size; lane++) {
        int32_t key = order((int32_t)raw(x, at + lane, bf16));
        if (count == most && key <= value[most - 1]) continue;
        key += key == -1;
        long i = count < most ? count++ : most - 1;
        for (; i && value[i - 1] < key; i--) {
          value[i] = value[i - 1];
          found[i] = found[i - 1];
        }
        value[i] = key;
        found[i] = from + lane;
      }
    }
    const int finite = magnitude <= INFINITE && value[0] > ~INFINITE && value[0] < INFINITE;
    index[0] = finite ? found[0] : -1;
    for (long i = 0; i < k; i++) index[1 + i] = found[i];
  }
}

/* Per row of x [rows, width], at least two wide, the index of the largest number, it, and the next
 * one.
 */
INLINE void two_best(float *found, const void *x, long rows, long width, const int bf16) {
  for (long row = 0; row < rows; row++, found += 3) {
    int32_t best[3];
    top_k(best, place(x, row * width, bf16), 1, width, 2, bf16);
    found[0] = best[1];
    for (int i = 1; i <= 2; i++) found[i] = number(raw(x, row * width + best[i], bf16));
  }
}

DTYPES(top_k, (int32_t *index, const void *x, long rows, long width, long k), index, x, rows, width, k)
DTYPES(two_best, (float *found, const void *x, long rows, long width), found, x, rows, width)
