// SPDX-License-Identifier: GPL-2.0-or-later
/* attention.c - see attention.h. */
#include "attention.h"
#include "vec.h"

#include <math.h>
#include <string.h>

void attend(float *out, const float *q, const struct kv_cache *kv, size_t pos,
	    const struct attention_shape *s, float *scores)
{
	size_t group = s->heads / s->kv_heads;
	size_t stride = s->kv_heads * s->head_dim;
	float scale = 1.0f / sqrtf((float)s->head_dim);

	memset(out, 0, s->heads * s->head_dim * sizeof(*out));
	for (size_t h = 0; h < s->heads; h++) {
		const float *k = kv->k + h / group * s->head_dim;
		const float *v = kv->v + h / group * s->head_dim;
		float *o = out + h * s->head_dim;

		for (size_t p = 0; p <= pos; p++)
			scores[p] = dot(q + h * s->head_dim, k + p * stride, s->head_dim) * scale;
		softmax(scores, pos + 1);
		for (size_t p = 0; p <= pos; p++)
			for (size_t i = 0; i < s->head_dim; i++)
				o[i] += scores[p] * v[p * stride + i];
	}
}
