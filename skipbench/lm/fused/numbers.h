/* Numbers in float32 or bfloat16, read as float32 and rounded to the nearest, ties to even. */
#include <stdint.h>
#include <string.h>

static inline float read(const void *at, long i, const int bf16) {
  const uint32_t bits =
      bf16 ? (uint32_t)((const uint16_t *)at)[i] << 16 : ((const uint32_t *)at)[i];
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline void put(void *at, long i, float value, const int bf16) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t half = value != value ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  if (bf16) ((uint16_t *)at)[i] = (uint16_t)half;
  else ((uint32_t *)at)[i] = bits;
}
