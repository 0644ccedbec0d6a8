/* What the kernels of attention share. */
#include "vec.h"

typedef struct {
  void *out;                 /* [rows, heads, d] */
  const void *query, *cache; /* [rows, heads, d]; [.., 2 kv, d]: the keys of all heads, then the values */
  const int32_t *parent;     /* [rows]: as `TokenRows.parent`, or null for a chain */
  float scale;
  /* a row sees the cache rows before `committed`, and its ancestors and itself from `start` on */
  long rows, committed, start, heads, kv, d;
} Pass;

INLINE long above(const Pass *p, long row) { return p->parent ? p->parent[row] : row - 1; }

/* The rows of the pass that a row sees, in the order of the text; gives how many. */
static inline long path_of(const Pass *p, long row, int32_t *path) {
  long depth = 0;
  for (long at = row; at >= 0; at = above(p, at)) depth++;
  for (long at = row, i = depth; at >= 0; at = above(p, at)) path[--i] = at;
  return depth;
}

/* The cache row of a position of the text, on a path of rows of the pass. */
INLINE long seen(const Pass *p, const int32_t *path, long text) {
  return path && text >= p->committed ? p->start + path[text - p->committed] : text;
}
