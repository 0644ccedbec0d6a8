/* What the kernels with AMX share. */
#include "vec.h"

/* Tiles 0 to 3 are sums [outputs, columns], 4 and 5 left sides [outputs, 64 bytes], 6 and 7 right
 * sides [16, columns]. */
__attribute__((target("amx-tile"))) static void configure(long outputs, long columns) {
  struct { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } c;
  memset(&c, 0, sizeof c);
  c.palette = 1;
  for (int t = 0; t < 8; t++) {
    c.rows[t] = t < 6 ? outputs : 16;
    c.bytes[t] = t == 4 || t == 5 ? 64 : 4 * columns;
  }
  __asm__ volatile("" : : "r"(&c) : "memory"); /* gcc sees 8 bytes of it read */
  _tile_loadconfig(&c);
}

/* Rows and columns of 16 x 16 change places. */
__attribute__((target("avx512f"))) static inline void transpose(__m512i a[16]) {
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
