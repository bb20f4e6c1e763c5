// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * cpu_dnnl.c - the FFN by oneDNN: weights in the format that it asks for, SiLU and the
 * product fused into its matrix multiplications (post-ops), h written as BF16.
 *
 * Its threads are OpenMP's.  They look for more work for a while (GOMP_SPINCOUNT, see
 * cpu.c) and sleep by the time that somebody else is measured.
 */
#include "cpu.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void omp_set_num_threads(int n);

/* A matrix multiplication for one number of tokens. */
struct product {
	dnnl_primitive_t primitive;
	dnnl_memory_t src, weights, dst, other, scratch;
	void *scratch_bytes;
};

struct dnnl {
	struct cpu_setup s;
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	dnnl_memory_desc_t format[3];	/* of gate, up, down */
	void **weights[3];	/* [experts] */
	size_t bytes[3];
	struct product product[3];
	float *g;		/* [tokens][neurons] */
	ndp_bf16 *h;		/* [tokens][neurons] */
	bool prepared;
	unsigned int expert;
};

static void must(dnnl_status_t status, const char *what)
{
	if (status != dnnl_success)
		bench_die("oneDNN: %s: status %d", what, (int)status);
}

static const char *describe(void *r)
{
	static char text[80];
	const dnnl_version_t *v = dnnl_version();

	(void)r;
	snprintf(text, sizeof(text), "oneDNN %d.%d.%d, isa 0x%x", v->major, v->minor, v->patch,
		 (unsigned int)dnnl_get_effective_cpu_isa());
	return text;
}

/* A matrix [rows][columns] with rows @ld elements apart, or in any format (@ld 0). */
static dnnl_memory_desc_t matrix(uint32_t rows, uint32_t columns, uint32_t ld,
				 dnnl_data_type_t type)
{
	const dnnl_dims_t dims = { rows, columns }, strides = { ld, 1 };
	dnnl_memory_desc_t md;

	if (ld)
		must(dnnl_memory_desc_init_by_strides(&md, 2, dims, type, strides), "strides");
	else
		must(dnnl_memory_desc_init_by_tag(&md, 2, dims, type, dnnl_format_tag_any), "tag");
	return md;
}

/* A matrix that is kept in files as [columns][rows] of this one. */
static dnnl_memory_desc_t transposed(uint32_t rows, uint32_t columns, uint32_t ld,
				     dnnl_data_type_t type)
{
	const dnnl_dims_t dims = { rows, columns }, strides = { 1, ld };
	dnnl_memory_desc_t md;

	must(dnnl_memory_desc_init_by_strides(&md, 2, dims, type, strides), "strides");
	return md;
}

/* Matrix @which of a part; its results are columns of wider rows where there are several. */
static dnnl_primitive_desc_t describe_product(struct dnnl *d, int which,
					      uint32_t tokens)
{
	uint32_t columns = which == 2 ? d->s.neurons : d->s.hidden;
	uint32_t rows = which == 2 ? d->s.hidden : d->s.neurons;
	dnnl_memory_desc_t src = matrix(tokens, columns, columns, dnnl_bf16);
	dnnl_memory_desc_t weights = matrix(columns, rows, 0, dnnl_bf16);
	dnnl_memory_desc_t g = matrix(tokens, d->s.neurons, d->s.neurons, dnnl_f32);
	dnnl_memory_desc_t dst = which == 0 ? g :
		which == 1 ? matrix(tokens, rows, d->s.neurons, dnnl_bf16) :
		matrix(tokens, rows, d->s.hidden, dnnl_f32);
	dnnl_primitive_desc_t pd = NULL;
	dnnl_primitive_attr_t attr;
	dnnl_matmul_desc_t matmul;
	dnnl_post_ops_t ops;

	must(dnnl_primitive_attr_create(&attr), "attributes");
	must(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratch");
	must(dnnl_post_ops_create(&ops), "post-ops");
	if (which == 0)
		must(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_swish, 1, 0), "swish");
	else if (which == 1)
		must(dnnl_post_ops_append_binary(ops, dnnl_binary_mul, &g), "product");
	must(dnnl_primitive_attr_set_post_ops(attr, ops), "post-ops");
	must(dnnl_matmul_desc_init(&matmul, &src, &weights, NULL, &dst), "matmul");
	if (dnnl_primitive_desc_create(&pd, &matmul, attr, d->engine, NULL) != dnnl_success)
		pd = NULL;
	dnnl_post_ops_destroy(ops);
	dnnl_primitive_attr_destroy(attr);
	return pd;
}

static void *open_dnnl(const struct cpu_setup *s, const char **why)
{
	struct dnnl *d = calloc(1, sizeof(*d));
	dnnl_primitive_desc_t pd;

	if (!d)
		bench_die("out of memory");
	d->s = *s;
	omp_set_num_threads((int)s->threads);
	if (s->isa)
		dnnl_set_max_cpu_isa(!strcmp(s->isa, "avx2") ? dnnl_cpu_isa_avx2 :
				     !strcmp(s->isa, "avx512-bf16") ?
				     dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_all);
	must(dnnl_engine_create(&d->engine, dnnl_cpu, 0), "engine");
	must(dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags), "stream");
	d->h = cpu_alloc((size_t)s->max_tokens * s->neurons * sizeof(*d->h));
	d->g = cpu_alloc((size_t)s->max_tokens * s->neurons * sizeof(*d->g));
	pd = describe_product(d, 0, 1);
	if (!pd) {
		*why = "oneDNN has no BF16 on this CPU";
		return NULL;
	}
	dnnl_primitive_desc_destroy(pd);
	return d;
}

/* Into the format that many tokens want; prepare() checks that few want the same. */
static void load_matrix(struct dnnl *d, int which, unsigned int e,
			const ndp_bf16 *src, uint32_t rows, uint32_t columns)
{
	dnnl_memory_desc_t plain = transposed(columns, rows, columns, dnnl_bf16);
	dnnl_primitive_desc_t pd = describe_product(d, which, d->s.max_tokens), re;
	dnnl_memory_t from, to;
	dnnl_primitive_t reorder;

	d->format[which] = *dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
	d->bytes[which] = dnnl_memory_desc_get_size(&d->format[which]);
	if (!d->weights[which])
		d->weights[which] = calloc(d->s.experts, sizeof(void *));
	d->weights[which][e] = cpu_alloc(d->bytes[which]);
	must(dnnl_memory_create(&from, &plain, d->engine, (void *)src), "memory");
	must(dnnl_memory_create(&to, &d->format[which], d->engine, d->weights[which][e]),
	     "memory");
	must(dnnl_reorder_primitive_desc_create(&re, &plain, d->engine, &d->format[which],
						d->engine, NULL), "reorder");
	must(dnnl_primitive_create(&reorder, re), "reorder");
	must(dnnl_primitive_execute(reorder, d->stream, 2, (dnnl_exec_arg_t[]){
		{ DNNL_ARG_FROM, from }, { DNNL_ARG_TO, to } }), "reorder");
	must(dnnl_stream_wait(d->stream), "reorder");
	dnnl_primitive_destroy(reorder);
	dnnl_primitive_desc_destroy(re);
	dnnl_primitive_desc_destroy(pd);
	dnnl_memory_destroy(from);
	dnnl_memory_destroy(to);
}

static void load(void *r, unsigned int e, const ndp_bf16 *gate, const ndp_bf16 *up,
		 const ndp_bf16 *down)
{
	struct dnnl *d = r;

	omp_set_num_threads((int)d->s.threads);
	load_matrix(d, 0, e, gate, d->s.neurons, d->s.hidden);
	load_matrix(d, 1, e, up, d->s.neurons, d->s.hidden);
	load_matrix(d, 2, e, down, d->s.hidden, d->s.neurons);
}

static void forget(struct dnnl *d)
{
	for (int which = 0; d->prepared && which < 3; which++) {
		struct product *m = &d->product[which];

		dnnl_primitive_destroy(m->primitive);
		dnnl_memory_destroy(m->src);
		dnnl_memory_destroy(m->weights);
		dnnl_memory_destroy(m->dst);
		dnnl_memory_destroy(m->scratch);
		if (m->other)
			dnnl_memory_destroy(m->other);
		free(m->scratch_bytes);
	}
	d->prepared = false;
}

/* The packed format of some numbers of tokens differs; then all experts are packed anew. */
static void repack(struct dnnl *d, int which, const dnnl_memory_desc_t *want)
{
	size_t bytes = dnnl_memory_desc_get_size(want);

	if (dnnl_memory_desc_equal(want, &d->format[which]))
		return;
	for (unsigned int e = 0; e < d->s.experts; e++) {
		void *packed = cpu_alloc(bytes);
		dnnl_primitive_desc_t re;
		dnnl_primitive_t reorder;
		dnnl_memory_t from, to;

		must(dnnl_memory_create(&from, &d->format[which], d->engine,
					d->weights[which][e]), "memory");
		must(dnnl_memory_create(&to, want, d->engine, packed), "memory");
		must(dnnl_reorder_primitive_desc_create(&re, &d->format[which], d->engine, want,
							d->engine, NULL), "reorder");
		must(dnnl_primitive_create(&reorder, re), "reorder");
		must(dnnl_primitive_execute(reorder, d->stream, 2, (dnnl_exec_arg_t[]){
			{ DNNL_ARG_FROM, from }, { DNNL_ARG_TO, to } }), "reorder");
		must(dnnl_stream_wait(d->stream), "reorder");
		dnnl_primitive_destroy(reorder);
		dnnl_primitive_desc_destroy(re);
		dnnl_memory_destroy(from);
		dnnl_memory_destroy(to);
		cpu_free(d->weights[which][e], d->bytes[which]);
		d->weights[which][e] = packed;
	}
	d->format[which] = *want;
	d->bytes[which] = bytes;
}

static void prepare(void *r, uint32_t tokens)
{
	struct dnnl *d = r;

	forget(d);
	omp_set_num_threads((int)d->s.threads);
	for (int which = 0; which < 3; which++) {
		dnnl_primitive_desc_t pd = describe_product(d, which, tokens);
		struct product *m = &d->product[which];
		const dnnl_memory_desc_t *scratch;

		if (!pd)
			bench_die("oneDNN has no product for %u tokens", tokens);
		repack(d, which, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0));
		*m = (struct product){ 0 };
		must(dnnl_primitive_create(&m->primitive, pd), "matmul");
		must(dnnl_memory_create(&m->src, dnnl_primitive_desc_query_md(
			pd, dnnl_query_src_md, 0), d->engine, DNNL_MEMORY_NONE), "memory");
		must(dnnl_memory_create(&m->weights, &d->format[which], d->engine,
					DNNL_MEMORY_NONE), "memory");
		must(dnnl_memory_create(&m->dst, dnnl_primitive_desc_query_md(
			pd, dnnl_query_dst_md, 0), d->engine, DNNL_MEMORY_NONE), "memory");
		scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
		if (posix_memalign(&m->scratch_bytes, 4096,
				   dnnl_memory_desc_get_size(scratch) + 64))
			bench_die("out of memory");
		must(dnnl_memory_create(&m->scratch, scratch, d->engine, m->scratch_bytes),
		     "memory");
		if (which == 1) {
			dnnl_memory_desc_t g = matrix(tokens, d->s.neurons, d->s.neurons,
						      dnnl_f32);

			must(dnnl_memory_create(&m->other, &g, d->engine, d->g), "memory");
		}
		dnnl_primitive_desc_destroy(pd);
	}
	d->prepared = true;
}

static void multiply(struct dnnl *d, int which, const void *src, void *dst)
{
	struct product *m = &d->product[which];
	dnnl_exec_arg_t args[5] = {
		{ DNNL_ARG_SRC, m->src }, { DNNL_ARG_WEIGHTS, m->weights },
		{ DNNL_ARG_DST, m->dst }, { DNNL_ARG_SCRATCHPAD, m->scratch },
		{ DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, m->other },
	};

	dnnl_memory_set_data_handle_v2(m->src, (void *)src, d->stream);
	dnnl_memory_set_data_handle_v2(m->weights, d->weights[which][d->expert], d->stream);
	dnnl_memory_set_data_handle_v2(m->dst, dst, d->stream);
	must(dnnl_primitive_execute(m->primitive, d->stream, which == 1 ? 5 : 4, args), "execute");
	must(dnnl_stream_wait(d->stream), "wait");
}

static void run(void *r, unsigned int expert, const ndp_bf16 *x, uint32_t tokens, float *y)
{
	struct dnnl *d = r;

	(void)tokens;
	d->expert = expert;
	omp_set_num_threads((int)d->s.threads);
	multiply(d, 0, x, d->g);
	multiply(d, 1, x, d->h);
	multiply(d, 2, d->h, y);
}

static void close_dnnl(void *r)
{
	struct dnnl *d = r;

	forget(d);
	for (int which = 0; which < 3; which++) {
		for (unsigned int e = 0; e < d->s.experts; e++)
			cpu_free(d->weights[which][e], d->bytes[which]);
		free(d->weights[which]);
	}
	dnnl_stream_destroy(d->stream);
	dnnl_engine_destroy(d->engine);
	cpu_free(d->h, (size_t)d->s.max_tokens * d->s.neurons * sizeof(*d->h));
	cpu_free(d->g, (size_t)d->s.max_tokens * d->s.neurons * sizeof(*d->g));
	free(d);
}

const struct cpu_runner cpu_dnnl = {
	.name = "oneDNN",
	.describe = describe,
	.open = open_dnnl,
	.load = load,
	.prepare = prepare,
	.run = run,
	.close = close_dnnl,
};
