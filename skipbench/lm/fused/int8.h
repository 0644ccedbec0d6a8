/* What the kernels of products in 8 bits and less share. */
#include <immintrin.h>
#include <stdint.h>

#define STREAMS 4
#define STEP 64   /* inputs of an output are filled up with 0 to a multiple of it */
#define VECTORS 2 /* rows up to which vectors are faster than tiles; one more below 8 bits */
/* Least largest weight of an output: below it are weights of 0, and a scale that made products
 * denormal would be a hundred times slower. */
#define SMALLEST 0x1p-64f

/* Weights in 6 and in 4 bits are places in a table of integers of 8 bits, one of `TABLES` per
 * `STEP` inputs: table t has numbers from -127 (t + 1) / TABLES to 127 (t + 1) / TABLES, 0 in the
 * middle. 64 inputs are 32 bytes of their lower 4 bits, those of the upper half above, and in 6
 * bits 16 bytes more of the upper 2 bits, four each.
 */
#define TABLES 64
#define PARTS 8 /* of an integer, in `nearest`; a product exact in floats */

typedef struct {
  const int8_t *tables;   /* [TABLES, STEP] */
  const uint8_t *nearest; /* [TABLES, 128 PARTS], the step from 0 that is next to a magnitude */
  int bits;
} Tables;

typedef struct {
  const uint8_t *w;          /* [out, in], filled up: int8_t, or places in tables */
  const uint8_t *groups;     /* [out, in / STEP], the table of each STEP inputs, from 0 for 1 */
  const int8_t *tables;      /* [TABLES, STEP] */
  const int32_t *sums;       /* [out], of its weights */
  const float *scale, *bias; /* [out]; [out] or null */
  long in, out, most;        /* inputs and outputs; largest magnitude of a row as integers */
  int bf16, bits;            /* x, residual and y are bfloat16, otherwise float32; of a weight */
} Weight;

/* Rows of x as integers, and one scale each; `sums` [rows, out] is written. */
typedef struct { float *sums; const int16_t *x; const float *scales; } Rows;

/* Writes the sums of the outputs `o`, `o + part` ... of a few rows, with `width` inputs. */
typedef void Block(const Weight *w, Rows p, long width, long o, long part, int rows);

/* Those of int8_avx512.c; `x` of tiles: rows in blocks of `most`, packed by `pack`. */
Block vnni_few, vnni_several;
void pack(uint8_t *to, const uint8_t *x, long rows, long most, long width);
void tiles(const Weight *w, Rows p, const uint8_t *x, long rows, long most, long width);

static inline long least(long a, long b) { return a < b ? a : b; }
