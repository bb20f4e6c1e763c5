/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * opencl.cl - expert FFNs on neuron blocks (ndp/pack.h, docs/hardware.md), several
 * experts in one launch.  OpenCL C 1.2, nothing optional.  Built several times, with
 *
 *   W   neighbouring neurons or outputs of a work-item: 1, or a CPU's vector width
 *   KS  parts that a group's dot products are cut into (added up in order); 1 if W > 1
 *   TG  groups of tokens, TT tokens in each: NT = TG * TT tokens a work-group
 *
 * Words of 32 bits hold two neighbouring columns of a weight; the 32 lanes of a
 * row of work-items read 32 neighbouring words, one neuron (ffn_h) or one output
 * (ffn_y) each.  x and h lie in local memory as FP32, where all lanes read the same
 * place at a time.
 *
 * Sums: 64 products in a row, then the sums of these chunks, then KS parts.  So
 * |sum' - sum| <= c(n) sum |a_k b_k| with c(n) = 1.01 * 2^-24 (64 + n / (64 KS) + KS + 2),
 * contracted to FMA or not.  No atomics; the same launch gives the same bits.
 *
 * The structures and limits are those of gpu.h.
 */

#define LANES 32
#define KC 64
#define NT (TG * TT)
#define STEP (KS * KC)
#define ITEMS (LANES / W)
#define GROUP (ITEMS * KS * TG)

#if W == 1
typedef float fv;
typedef uint uv;
#define AS_FV as_float
#define LOAD(p) (*(p))
#define STORE(v, p) (*(p) = (v))
#else
#define JOIN2(a, b) a ## b
#define JOIN(a, b) JOIN2(a, b)
typedef JOIN(float, W) fv;
typedef JOIN(uint, W) uv;
#define AS_FV JOIN(as_float, W)
#define LOAD(p) JOIN(vload, W)(0, p)
#define STORE(v, p) JOIN(vstore, W)(v, 0, p)
#if KS != 1
#error "parts are for W = 1"
#endif
#endif

struct job {
	ulong h_off;		/* elements of h */
	ulong y_off;		/* elements of y */
	ulong block_words;
	uint rows_off;		/* in the list of rows */
	uint tokens;
	uint h_in;
	uint h_out;
	uint blocks;
	uint extent;		/* first of them */
	uint tiles_h_end;	/* work-groups of this launch up to and with this job */
	uint tiles_y_end;
	uint act;
	uint accumulate;
	float alpha;
	float limit;
};

struct extent {
	ulong offset;		/* words */
	uint arena;
	uint first;		/* block of the job */
	uint end;
	uint unused;
};

#define ARENAS __global const uint *a0, __global const uint *a1, __global const uint *a2, \
	__global const uint *a3, __global const uint *a4, __global const uint *a5, \
	__global const uint *a6, __global const uint *a7
#define ARENA_ARGS a0, a1, a2, a3, a4, a5, a6, a7

/* The two columns of a word. */
#define LOW(as, w) as((w) << 16)
#define HIGH(as, w) as((w) & 0xffff0000u)

/* Nearest, ties to even; NaN stays NaN. */
static ushort bf16(float f)
{
	uint u = as_uint(f);

	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (ushort)(u >> 16 | 0x40);
	return (ushort)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Comparisons are written so that a NaN stays. */
static float activate(uint act, float alpha, float limit, float g, float u)
{
	float z = g, s;

	if (act) {
		g = g > limit ? limit : g;
		u = u > limit ? limit : u;
		u = (u < -limit ? -limit : u) + 1;
		z = alpha * g;
	}
	s = exp(-fabs(z));
	return g * ((z < 0 ? s : 1.0f) / (1 + s)) * u;
}

static __global const uint *block_at(__global const struct extent *e, ulong words, uint block, ARENAS)
{
	__global const uint *base;

	while (block >= e->end)
		e++;
	switch (e->arena) {
	case 0: base = a0; break;
	case 1: base = a1; break;
	case 2: base = a2; break;
	case 3: base = a3; break;
	case 4: base = a4; break;
	case 5: base = a5; break;
	case 6: base = a6; break;
	default: base = a7; break;
	}
	return base + e->offset + (block - e->first) * words;
}

/* Columns @k0 to @k0 + STEP - 1 of the tokens from @t0 on, zero where there are none. */
static void fill(__local float2 *xs, __global const ushort *src, ulong ld,
		 __global const uint *rows, uint t0, uint tokens, uint k0, uint cols)
{
	for (uint i = get_local_id(0); i < STEP / 2 * NT; i += GROUP) {
		uint p = i % (STEP / 2), t = i / (STEP / 2), k = k0 + 2 * p;
		float2 v = (float2)(0.0f, 0.0f);

		if (t0 + t < tokens && k < cols) {
			ulong row = rows ? rows[t0 + t] : t0 + t;
			uint w = *(__global const uint *)(src + row * ld + k);

			v.x = LOW(as_float, w);
			v.y = k + 1 < cols ? HIGH(as_float, w) : 0.0f;
		}
		xs[p * NT + t] = v;
	}
}

/* s[t] += 32 columns of a row of weights . x[t], for each of the work-item's rows. */
static void dot32(fv *s, __global const uint *w, __local const float2 *xs)
{
	for (uint i = 0; i < 16; i++) {
		uv v = LOAD(w + i * LANES);
		fv a = LOW(AS_FV, v), b = HIGH(AS_FV, v);

#pragma unroll
		for (uint t = 0; t < TT; t++) {
			float2 x = xs[i * NT + t];

			s[t] += a * x.x;
			s[t] += b * x.y;
		}
	}
}

/* The same for two matrices at once. */
static void dot32x2(fv *s, fv *r, __global const uint *w, __global const uint *u,
		    __local const float2 *xs)
{
	for (uint i = 0; i < 16; i++) {
		uv v = LOAD(w + i * LANES), n = LOAD(u + i * LANES);
		fv a = LOW(AS_FV, v), b = HIGH(AS_FV, v);
		fv c = LOW(AS_FV, n), d = HIGH(AS_FV, n);

#pragma unroll
		for (uint t = 0; t < TT; t++) {
			float2 x = xs[i * NT + t];

			s[t] += a * x.x;
			s[t] += b * x.y;
			r[t] += c * x.x;
			r[t] += d * x.y;
		}
	}
}

/* h[t][neuron] = bf16(act(gate . x[t], up . x[t])): a work-group has a block and NT tokens. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void ffn_h(__global const struct job *jobs, __global const struct extent *extents,
	   __global const uint *rows, uint first_job, uint nr_jobs,
	   __global const ushort *x, uint ldx,
	   __global ushort *h, ARENAS)
{
	__local float2 xs[STEP / 2 * NT];
#if KS > 1
	__local float *parts = (__local float *)xs;
#endif
	uint lane = get_local_id(0) % ITEMS * W, tg = get_local_id(0) / ITEMS % TG;
	uint ks = get_local_id(0) / ITEMS / TG;
	uint tile = get_group_id(0), lo = 0, hi = nr_jobs - 1;
	fv g[TT], u[TT];

	jobs += first_job;
	while (lo < hi) {
		uint mid = (lo + hi) / 2;

		if (tile >= jobs[mid].tiles_h_end)
			lo = mid + 1;
		else
			hi = mid;
	}
	__global const struct job *job = &jobs[lo];
	uint tokens = job->tokens, h_in = job->h_in, padded = (h_in + 63) / 64 * 64;
	uint tiles = (tokens + NT - 1) / NT;

	tile -= lo ? jobs[lo - 1].tiles_h_end : 0;
	uint block = tile / tiles, t0 = tile % tiles * NT;
	__global const uint *gate = block_at(extents + job->extent, job->block_words, block,
					     ARENA_ARGS) + lane;
	__global const uint *up = gate + padded * (LANES / 2);

	for (uint t = 0; t < TT; t++)
		g[t] = u[t] = 0;
	for (uint k0 = 0; k0 < padded; k0 += STEP) {
		fv cg[TT], cu[TT];
		uint k = k0 + ks * KC;

		barrier(CLK_LOCAL_MEM_FENCE);
		fill(xs, x, ldx, rows + job->rows_off, t0, tokens, k0, h_in);
		barrier(CLK_LOCAL_MEM_FENCE);
		for (uint t = 0; t < TT; t++)
			cg[t] = cu[t] = 0;
		for (uint s = 0; s < KC && k + s < padded; s += 32)
			dot32x2(cg, cu, gate + (k + s) * (LANES / 2), up + (k + s) * (LANES / 2),
				xs + (ks * KC + s) / 2 * NT + tg * TT);
		for (uint t = 0; t < TT; t++) {
			g[t] += cg[t];
			u[t] += cu[t];
		}
	}
#if KS > 1
	barrier(CLK_LOCAL_MEM_FENCE);
	for (uint t = 0; t < TT; t++) {
		uint at = ((ks * NT + tg * TT + t) * 2) * LANES + lane;

		parts[at] = g[t];
		parts[at + LANES] = u[t];
	}
	barrier(CLK_LOCAL_MEM_FENCE);
#endif
	if (ks)
		return;
	for (uint t = 0; t < TT; t++) {
		uint row = t0 + tg * TT + t;

#if KS > 1
		for (uint p = 1; p < KS; p++) {
			uint at = ((p * NT + tg * TT + t) * 2) * LANES + lane;

			g[t] += parts[at];
			u[t] += parts[at + LANES];
		}
#endif
		if (row < tokens) {
			__global ushort *to = h + job->h_off +
					      ((ulong)row * job->blocks + block) * LANES + lane;
			float a[W], b[W];

			STORE(g[t], a);
			STORE(u[t], b);
			for (uint i = 0; i < W; i++)
				to[i] = bf16(activate(job->act, job->alpha, job->limit, a[i], b[i]));
		}
	}
}

/* y[t][output] = down . h[t]: a work-group has 32 outputs and NT tokens. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void ffn_y(__global const struct job *jobs, __global const struct extent *extents,
	   uint first_job, uint nr_jobs, __global const ushort *h, __global float *y, ARENAS)
{
	__local float2 xs[STEP / 2 * NT];
#if KS > 1
	__local float *parts = (__local float *)xs;
#endif
	uint lane = get_local_id(0) % ITEMS * W, tg = get_local_id(0) / ITEMS % TG;
	uint ks = get_local_id(0) / ITEMS / TG;
	uint tile = get_group_id(0), lo = 0, hi = nr_jobs - 1;
	fv sum[TT];

	jobs += first_job;
	while (lo < hi) {
		uint mid = (lo + hi) / 2;

		if (tile >= jobs[mid].tiles_y_end)
			lo = mid + 1;
		else
			hi = mid;
	}
	__global const struct job *job = &jobs[lo];
	uint tokens = job->tokens, neurons = job->blocks * LANES;
	uint tiles = (tokens + NT - 1) / NT;

	tile -= lo ? jobs[lo - 1].tiles_y_end : 0;
	uint out = tile / tiles, t0 = tile % tiles * NT;
	ulong down = (ulong)((job->h_in + 63) / 64 * 64) * LANES + out * (LANES * LANES / 2) + lane;

	for (uint t = 0; t < TT; t++)
		sum[t] = 0;
	for (uint k0 = 0; k0 < neurons; k0 += STEP) {
		fv c[TT];
		uint k = k0 + ks * KC;

		barrier(CLK_LOCAL_MEM_FENCE);
		fill(xs, h + job->h_off, neurons, 0, t0, tokens, k0, neurons);
		barrier(CLK_LOCAL_MEM_FENCE);
		for (uint t = 0; t < TT; t++)
			c[t] = 0;
		for (uint s = 0; s < KC && k + s < neurons; s += 32)
			dot32(c, block_at(extents + job->extent, job->block_words, (k + s) / 32,
					  ARENA_ARGS) + down,
			      xs + (ks * KC + s) / 2 * NT + tg * TT);
		for (uint t = 0; t < TT; t++)
			sum[t] += c[t];
	}
#if KS > 1
	barrier(CLK_LOCAL_MEM_FENCE);
	for (uint t = 0; t < TT; t++)
		parts[(ks * NT + tg * TT + t) * LANES + lane] = sum[t];
	barrier(CLK_LOCAL_MEM_FENCE);
#endif
	if (ks)
		return;
	for (uint t = 0; t < TT; t++) {
		uint row = t0 + tg * TT + t, j = out * LANES + lane;

#if KS > 1
		for (uint p = 1; p < KS; p++)
			sum[t] += parts[(p * NT + tg * TT + t) * LANES + lane];
#endif
		if (row < tokens) {
			__global float *to = y + job->y_off + (ulong)row * job->h_out + j;
			float a[W];

			STORE(sum[t], a);
			for (uint i = 0; i < W && j + i < job->h_out; i++)
				to[i] = job->accumulate ? to[i] + a[i] : a[i];
		}
	}
}
