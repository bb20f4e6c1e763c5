// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_forward_faults.c - what breaks while a layer runs: a GPU that is lost, a DIMM
 * that fails a command, a queue that fails, memory that is not to be had.  The result
 * is right or the error names the culprit; nothing is left in flight, and the context
 * can be used again.
 *
 * The linker puts this file's functions in front of the library's (--wrap).
 */
#include "forward_ref.h"
#include "gpu_ref.h"

static struct ndp_cpu *cpu;
static struct ndp_gpu *gpu;
static struct ndp_device *dev;

static const struct fm_spec spec = {
	.hidden = 96, .neurons = 160, .experts = 8, .top_k = 2, .shared_neurons = 64,
	.router = { .renormalize = true },
};

static const struct ndp_host even = {
	.gpu = { .gflops = 40, .gbps = 40, .overhead_ns = 100 },
	.cpu = { .gflops = 40, .overhead_ns = 100 },
	.dimm = { .gflops = 15, .gbps = 15, .overhead_ns = 100 },
	.pcie_gbps = 40, .channel_gbps = 20, .nr_channels = 2, .nr_dimms = 4,
};

/* ---- faults to order ------------------------------------------------------------------ */

static enum { NONE, AT_SUBMIT, AT_POLL, AT_WAIT } gpu_fault;
static int command_fault;	/* -errno for the command number @command_at */
static uint32_t command_at;
static int queue_fault;		/* -errno of ndp_queue_wait() */
static int push_fault;
static uint32_t pushes;
static uint64_t x_bytes;
static bool count_x;
static int cpu_fault;

int __real_ndp_gpu_submit(struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx, uint32_t x_rows,
			  const struct ndp_gpu_job *jobs, uint32_t n, struct ndp_error *err);
int __wrap_ndp_gpu_submit(struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx, uint32_t x_rows,
			  const struct ndp_gpu_job *jobs, uint32_t n, struct ndp_error *err);
int __real_ndp_gpu_poll(struct ndp_gpu_queue *q);
int __wrap_ndp_gpu_poll(struct ndp_gpu_queue *q);
int __real_ndp_gpu_wait(struct ndp_gpu_queue *q, uint64_t *ns);
int __wrap_ndp_gpu_wait(struct ndp_gpu_queue *q, uint64_t *ns);
int __real_ndp_queue_wait(struct ndp_queue *q, struct ndp_result *results, unsigned int max,
			  unsigned int min);
int __wrap_ndp_queue_wait(struct ndp_queue *q, struct ndp_result *results, unsigned int max,
			  unsigned int min);
int __real_ndp_queue_push(struct ndp_queue *q, const struct ndp_cmd *cmd);
int __wrap_ndp_queue_push(struct ndp_queue *q, const struct ndp_cmd *cmd);
int __real_ndp_io_write(struct ndp_io *io, uint32_t mask, size_t off, const void *src, size_t n);
int __wrap_ndp_io_write(struct ndp_io *io, uint32_t mask, size_t off, const void *src, size_t n);
int __real_ndp_cpu_ffn(struct ndp_cpu *c, const struct ndp_cpu_job *jobs, uint32_t n,
		       void (*poll)(void *arg), void *arg);
int __wrap_ndp_cpu_ffn(struct ndp_cpu *c, const struct ndp_cpu_job *jobs, uint32_t n,
		       void (*poll)(void *arg), void *arg);

/* What a lost GPU had computed is undefined. */
static float *gpu_y;
static size_t gpu_floats;

int __wrap_ndp_gpu_submit(struct ndp_gpu_queue *q, const ndp_bf16 *x, size_t ldx, uint32_t x_rows,
			  const struct ndp_gpu_job *jobs, uint32_t n, struct ndp_error *err)
{
	if (gpu_fault == AT_SUBMIT)
		return -ENODEV;
	gpu_y = jobs[0].y;
	gpu_floats = jobs[0].tokens * jobs[0].ldy;
	return __real_ndp_gpu_submit(q, x, ldx, x_rows, jobs, n, err);
}

int __wrap_ndp_gpu_poll(struct ndp_gpu_queue *q)
{
	return gpu_fault == AT_POLL ? -ENODEV : gpu_fault == AT_WAIT ? 0 : __real_ndp_gpu_poll(q);
}

int __wrap_ndp_gpu_wait(struct ndp_gpu_queue *q, uint64_t *ns)
{
	int r = __real_ndp_gpu_wait(q, ns);

	if (gpu_fault != AT_POLL && gpu_fault != AT_WAIT)
		return r;
	memset(gpu_y, 0xff, gpu_floats * sizeof(*gpu_y));
	return -ENODEV;
}

int __wrap_ndp_queue_wait(struct ndp_queue *q, struct ndp_result *results, unsigned int max,
			  unsigned int min)
{
	int n = queue_fault ? queue_fault : __real_ndp_queue_wait(q, results, max, min);

	for (int i = 0; i < n && command_fault; i++) {
		if (results[i].tag != command_at)
			continue;
		results[i].res = command_fault;
		results[i].dimm_mask = 0;
	}
	return n;
}

int __wrap_ndp_queue_push(struct ndp_queue *q, const struct ndp_cmd *cmd)
{
	if (push_fault && pushes++ == command_at)
		return push_fault;
	return __real_ndp_queue_push(q, cmd);
}

int __wrap_ndp_io_write(struct ndp_io *io, uint32_t mask, size_t off, const void *src, size_t n)
{
	if (count_x)
		x_bytes += n * (uint32_t)__builtin_popcount(mask);
	return __real_ndp_io_write(io, mask, off, src, n);
}

int __wrap_ndp_cpu_ffn(struct ndp_cpu *c, const struct ndp_cpu_job *jobs, uint32_t n,
		       void (*poll)(void *arg), void *arg)
{
	return cpu_fault ? cpu_fault : __real_ndp_cpu_ffn(c, jobs, n, poll, arg);
}

static int open_all(void **state)
{
	UNUSED_STATE;
	cpu = fm_cpu(2);
	gpu = gpu_ref_open(16 << 20, UINT64_MAX, false);
	dev = ref_open("soft:dimms=4,size=32M");
	return 0;
}

static int close_all(void **state)
{
	UNUSED_STATE;
	ndp_close(dev);
	if (gpu)
		ndp_gpu_close(gpu);
	ndp_cpu_close(cpu);
	return 0;
}

static struct ndp_moe_options options_of(uint32_t domains, enum ndp_policy policy)
{
	return (struct ndp_moe_options){ .device = dev, .cpu = cpu, .gpu = gpu, .host = &even,
					 .domains = domains, .policy = policy };
}

/* ---- the GPU -------------------------------------------------------------------------------- */

/* At any point, whoever else computes; what fails is the whole of it only if nobody is left. */
static void lost_gpu(void **state)
{
	static const struct { uint32_t domains; bool has_cpu, has_dimms; } mixes[] = {
		{ 7, true, true }, { NDPI_GPU | NDPI_CPU, true, true },
		{ NDPI_GPU | NDPI_NDP, true, true }, { NDPI_GPU | NDPI_NDP, false, true },
		{ NDPI_GPU, true, true }, { NDPI_GPU, false, true }, { NDPI_GPU, true, false },
	};

	UNUSED_STATE;
	if (!gpu)
		skip();
	for (int fixed = 0; fixed < 2; fixed++)
		for (size_t i = 0; i < sizeof(mixes) / sizeof(*mixes); i++)
			for (int at = AT_SUBMIT; at <= AT_WAIT; at++) {
				struct ndp_moe_options o = options_of(mixes[i].domains,
								      NDP_POLICY_TRIMOE);
				struct ndp_moe_context *ctx, *later;
				struct ndp_moe_report r;
				struct fm *m;

				o.deterministic = fixed;
				if (!mixes[i].has_cpu)
					o.cpu = NULL;
				if (!mixes[i].has_dimms)
					o.device = NULL;
				m = fm_new(&spec, &o);
				ctx = fm_context(m, 40);
				fm_run(m, ctx, 0, 40, 1, &r);
				assert_true(r.domain[NDP_DOMAIN_GPU].tokens > 0 && !r.gpu_lost);
				gpu_fault = at;
				fm_run(m, ctx, 0, 40, 2, &r);
				assert_true(r.gpu_lost);
				assert_int_equal(r.domain[NDP_DOMAIN_GPU].tokens, 0);
				/* For good, for everybody, and not asked again. */
				gpu_fault = NONE;
				fm_run(m, ctx, 0, 40, 3, &r);
				assert_true(r.gpu_lost);
				assert_int_equal(r.domain[NDP_DOMAIN_GPU].tokens, 0);
				later = fm_context(m, 5);
				fm_run(m, later, 0, 5, 4, &r);
				assert_int_equal(r.domain[NDP_DOMAIN_GPU].tokens, 0);
				ndp_moe_context_free(later);
				ndp_moe_context_free(ctx);
				fm_free(m);
			}
}

static void lost_gpu_and_nothing_else(void **state)
{
	const struct ndp_moe_options o = { .gpu = gpu };
	struct ndp_moe_context *ctx;
	struct ndp_error err;
	float x[96] = { 0 };
	struct fm *m;

	UNUSED_STATE;
	if (!gpu)
		skip();
	m = fm_new(&spec, &o);
	ctx = fm_context(m, 4);
	fm_run(m, ctx, 0, 4, 1, NULL);
	gpu_fault = AT_WAIT;
	assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, 96, 1, x, 96, NULL, &err), -ENODEV);
	gpu_fault = NONE;
	assert_non_null(strstr(err.message, "GPU is lost"));
	assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, 96, 1, x, 96, NULL, &err), -ENODEV);
	assert_int_equal(ndp_moe_set_hot(&m->moe, 0, NULL, 0, &err), -ENODEV);
	ndp_moe_context_free(ctx);
	fm_free(m);
}

/* ---- DIMMs ------------------------------------------------------------------------ */

/* Commands are numbered by expert; the shared one (given to the DIMMs here) is the last. */
static void failed_commands(void **state)
{
	static const struct { int code; const char *words; } faults[] = {
		{ -ENODEV, "is gone" }, { -EIO, "reported an error" }, { -ETIMEDOUT, "was reset" },
	};
	static const uint32_t ids[] = { 5, 2, 5, 7 };
	static const float weights[] = { 1, 1, 1, 1 };

	UNUSED_STATE;
	for (int mix = 0; mix < 2; mix++)
		for (size_t f = 0; f < 3; f++)
			for (command_at = 0; command_at < 3; command_at++) {
				struct ndp_moe_options o = options_of(mix ? NDPI_NDP | NDPI_CPU :
								      NDPI_NDP, NDP_POLICY_TRIMOE);
				struct ndp_host fast = even;
				struct ndp_moe_context *ctx;
				static const uint32_t names[] = { 2, 5, 7 };
				float x[2 * 96] = { 0 };
				char name[32];
				struct ndp_error err;
				struct fm *m;

				fast.dimm.gflops = fast.dimm.gbps = 1e6; /* all experts go there */
				o.host = &fast;
				m = fm_new(&spec, &o);
				ctx = fm_context(m, 4);
				command_fault = faults[f].code;
				assert_int_equal(ndp_moe_forward_routed(ctx, 0, 0, x, 96, 2, 2, ids,
									weights, x, 96, NULL, &err),
						 faults[f].code);
				command_fault = 0;
				snprintf(name, sizeof(name), "layer 0 expert %u:",
					 names[command_at]);
				if (!strstr(err.message, name) ||
				    !strstr(err.message, faults[f].words))
					fail_msg("%s", err.message);
				fm_run(m, ctx, 0, 4, 1, NULL);
				ndp_moe_context_free(ctx);
				fm_free(m);
			}
}

static void failed_shared_expert(void **state)
{
	const struct ndp_moe_options o = { .device = dev };
	struct fm *m = fm_new(&spec, &o);
	struct ndp_moe_context *ctx = fm_context(m, 4);
	float x[96] = { 0 };
	struct ndp_error err;

	UNUSED_STATE;
	command_fault = -ENODEV;
	command_at = 2;
	assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, 96, 1, x, 96, NULL, &err), -ENODEV);
	command_fault = 0;
	assert_non_null(strstr(err.message, "layer 0 shared expert:"));
	fm_run(m, ctx, 0, 4, 1, NULL);
	ndp_moe_context_free(ctx);
	fm_free(m);
}

static void refused_commands(void **state)
{
	const struct ndp_moe_options o = { .device = dev };
	struct fm *m = fm_new(&spec, &o);
	struct ndp_moe_context *ctx = fm_context(m, 40);
	float *x = fm_x(m, 40, 96, 1);
	struct ndp_error err;

	UNUSED_STATE;
	for (command_at = 0; command_at < 2; command_at++) {
		push_fault = -EXDEV;
		pushes = 0;
		assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, 96, 40, x, 96, NULL, &err), -EXDEV);
		push_fault = 0;
		assert_non_null(strstr(err.message, "command was refused"));
		fm_run(m, ctx, 0, 40, 2, NULL);
	}
	ndp_moe_context_free(ctx);
	fm_free(m);
	free(x);
}

/* When nobody can say what is in flight the context is not used again. */
static void failed_queue(void **state)
{
	const struct ndp_moe_options o = { .device = dev };
	struct fm *m = fm_new(&spec, &o);
	struct ndp_moe_context *ctx = fm_context(m, 4), *other;
	float x[96] = { 0 };
	struct ndp_error err;

	UNUSED_STATE;
	queue_fault = -EBADFD;
	assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, 96, 1, x, 96, NULL, &err), -EBADFD);
	queue_fault = 0;
	assert_non_null(strstr(err.message, "queue of commands failed"));
	assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, 96, 1, x, 96, NULL, &err), -EIO);
	other = fm_context(m, 4);
	fm_run(m, other, 0, 4, 1, NULL);
	ndp_moe_context_free(other);
	ndp_moe_context_free(ctx);
	fm_free(m);
}

static void failed_cpu(void **state)
{
	const struct ndp_moe_options o = options_of(7, NDP_POLICY_TRIMOE);
	struct fm *m = fm_new(&spec, &o);
	struct ndp_moe_context *ctx = fm_context(m, 40);
	float *x = fm_x(m, 40, 96, 1);
	struct ndp_error err;

	UNUSED_STATE;
	cpu_fault = -ENOMEM;
	assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, 96, 40, x, 96, NULL, &err), -ENOMEM);
	cpu_fault = 0;
	assert_non_null(strstr(err.message, "on the CPU"));
	fm_run(m, ctx, 0, 40, 2, NULL);
	ndp_moe_context_free(ctx);
	fm_free(m);
	free(x);
}

/* A row of x goes to the DIMMs that need it and to no other, and once. */
static void x_is_written_once(void **state)
{
	static const uint32_t ids[] = { 0, 4, 1, 5 }; /* DIMM 0, 0, 1, 1 */
	static const float weights[] = { 1, 1, 1, 1 };
	const struct ndp_moe_options o = { .device = dev };
	struct fm *m = fm_new(&spec, &o);
	struct ndp_moe_context *ctx = fm_context(m, 4);
	float x[2 * 96] = { 0 };
	struct ndp_moe_report r;
	struct ndp_error err;

	UNUSED_STATE;
	count_x = true;
	x_bytes = 0;
	assert_int_equal(ndp_moe_forward_routed(ctx, 0, 0, x, 96, 2, 2, ids, weights, x, 96, &r,
						&err), 0);
	count_x = false;
	/* Two rows of 96 columns, padded to 64 bytes, and four lists of one row. */
	assert_int_equal(x_bytes, 2 * 192 + 4 * 4);
	assert_int_equal(r.x_bytes, x_bytes);
	assert_int_equal(r.y_bytes, 4 * 96 * 4);
	assert_int_equal(r.retries, 0);
	assert_int_equal(r.domain[NDP_DOMAIN_NDP].commands, 4);
	assert_true(r.dimm_modelled_ns > 0);
	ndp_moe_context_free(ctx);
	fm_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lost_gpu),
		cmocka_unit_test(lost_gpu_and_nothing_else),
		cmocka_unit_test(failed_commands),
		cmocka_unit_test(failed_shared_expert),
		cmocka_unit_test(refused_commands),
		cmocka_unit_test(failed_queue),
		cmocka_unit_test(failed_cpu),
		cmocka_unit_test(x_is_written_once),
	};

	return cmocka_run_group_tests_name("forward_faults", tests, open_all, close_all);
}
