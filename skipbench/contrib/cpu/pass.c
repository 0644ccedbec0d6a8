/* The sub-layers of a pass over few rows, one after the other. Called one by one from Python, eight
 * functions per layer, their calls took a quarter of a one-row pass of a model of 135M parameters.
 */
#include <stdint.h>

typedef void Norm(void *y, const void *x, const void *w, float eps, long rows, long width);
typedef void Silu(void *y, const void *gate_up, long rows, long width);
typedef void Rotate(void *query, void *cache, const void *qkv, const void *cos, const void *sin,
                    long rows, long heads, long kv, long d);
typedef void Attend(void *out, const void *query, const void *cache, const int32_t *parent,
                    float scale, long rows, long committed, long start, long heads, long kv,
                    long d);
typedef void Product(const void *weight, void *y, const void *residual, const void *x, long rows);
typedef void Mlp(const void *gate_up, const void *down, void *y, const void *residual,
                 const void *x, long rows);

typedef struct {
  Product *first, *second;                /* qkv and output, or gate_up and down */
  const void *first_weight, *second_weight;
  Mlp *both;                              /* of several rows of an MLP, or null */
  const void *norm;                       /* [width] */
  char *cache;                            /* [.., 2 kv, d] of its layer, or null for an MLP */
  long inner;                             /* inputs of the second product */
  float eps, scale;
} Sublayer;

typedef struct {
  Norm *norm;
  Silu *silu;
  Rotate *rotate;
  Attend *attend;
  long size, width, kv, d, widest;        /* bytes per number; the most outputs of a first product */
} Model;

typedef struct {
  const int32_t *parent;                  /* as for `attend_bfloat16` */
  const void *cos, *sin;                  /* [rows, d] */
  long rows, committed, start;
} Pass;

/* The state before the first sub-layer is x [rows, width]; that after sub-layer i goes to
 * states [slots, rows, width] at i % slots. temp [rows, width + 3 widest].
 */
void run_sublayers(const Model *m, const Pass *p, const Sublayer *const *chosen, long count,
                   const char *x, char *states, long slots, char *temp) {
  const long rows = p->rows, state = rows * m->width * m->size, wide = rows * m->widest * m->size;
  const long row = 2 * m->kv * m->d * m->size;
  char *const normed = temp, *const a = temp + state, *const b = a + wide, *const c = b + wide;
  for (long i = 0; i < count; i++) {
    const Sublayer *s = chosen[i];
    char *const y = states + i % slots * state;
    m->norm(normed, x, s->norm, s->eps, rows, m->width);
    if (s->both && rows > 1) {
      s->both(s->first_weight, s->second_weight, y, x, normed, rows);
      x = y;
      continue;
    }
    s->first(s->first_weight, a, 0, normed, rows);
    if (s->cache) {
      const long heads = s->inner / m->d;
      m->rotate(b, s->cache + p->start * row, a, p->cos, p->sin, rows, heads, m->kv, m->d);
      m->attend(c, b, s->cache, p->parent, s->scale, rows, p->committed, p->start, heads, m->kv, m->d);
    } else {
      m->silu(c, a, rows, s->inner);
    }
    s->second(s->second_weight, y, x, c, rows);
    x = y;
  }
}
