/* What the two kernels of attention in bfloat16 share. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "avx512.h"

typedef struct {
  bf16 *out;             /* [rows, heads, d] */
  const bf16 *query;     /* [rows, heads, d] */
  const bf16 *cache;     /* [.., 2 kv, d]: the keys of all heads, then the values */
  const int32_t *parent; /* [rows]: as `TokenRows.parent`, or null for a chain */
  float scale;
  /* a row sees the cache rows before `committed`, and its ancestors and itself from `start` on; these
   * numbers leave `hidden` rows behind the first SINKS out, where a draft has a window */
  long rows, committed, start, heads, kv, d, hidden;
} Pass;

static inline long unhidden(const Pass *p, long row) { return row < SINKS ? row : row + p->hidden; }

static inline long parts(long n, long size) { return (n + size - 1) / size; }

static inline __mmask32 first_of_32(long lanes) { return lanes >= 32 ? ~0u : (1u << lanes) - 1; }

static inline long above(const Pass *p, long row) { return p->parent ? p->parent[row] : row - 1; }

/* The rows of the pass that a row sees, in the order of the text; gives how many. */
static inline long path_of(const Pass *p, long row, int32_t *path) {
  long depth = 0;
  for (long at = row; at >= 0; at = above(p, at)) depth++;
  for (long at = row, i = depth; at >= 0; at = above(p, at)) path[--i] = at;
  return depth;
}
