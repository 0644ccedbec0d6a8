/* What the kernels of products in 8 bits share. */
#include "vec.h"

#define STREAMS 4
#define STEP 64   /* inputs of an output are filled up with 0 to a multiple of it */
#define VECTORS 2 /* rows up to which vectors are faster than tiles */
/* Least largest weight of an output: below it are weights of 0, and a scale that made products
 * denormal would be a hundred times slower. */
#define SMALLEST 0x1p-64f

typedef struct {
  const int8_t *w;           /* [out, in], filled up */
  const int32_t *sums;       /* [out], of its weights */
  const float *scale, *bias; /* [out]; [out] or null */
  long in, out, most;        /* inputs and outputs; largest magnitude of a row as integers */
  int bf16;                  /* x, residual and y are bfloat16, otherwise float32 */
} Weight;

/* Rows of x as integers, and one scale each; `sums` [rows, out] is written. */
typedef struct { float *sums; const int16_t *x; const float *scales; } Rows;

/* Writes the sums of the outputs `o`, `o + part` ... of a few rows, with `width` inputs. */
typedef void Block(const Weight *w, Rows p, long width, long o, long part, int rows);

/* Those of int8_avx512.c; `x` of tiles: rows in blocks of `most`, packed by `pack`. */
Block vnni_few, vnni_several;
void pack(uint8_t *to, const uint8_t *x, long rows, long most, long width);
void tiles(const Weight *w, Rows p, const uint8_t *x, long rows, long most, long width);
