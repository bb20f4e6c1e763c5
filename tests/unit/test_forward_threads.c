// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_forward_threads.c - several threads run layers of several models at once, on
 * shared workers, device and GPU, while weights migrate and hot experts change; and the
 * same bits come out of any number of threads.
 */
#include "forward_ref.h"
#include "gpu_ref.h"

static const struct fm_spec specs[] = {
	{ .hidden = 96, .neurons = 160, .experts = 8, .top_k = 2, .shared_neurons = 64,
	  .router = { .renormalize = true } },
	{ .hidden = 64, .neurons = 70, .experts = 12, .top_k = 4, .selection = true,
	  .router = { .scoring = NDP_SCORE_SIGMOID, .renormalize = true } },
};

static const struct ndp_host even = {
	.gpu = { .gflops = 40, .gbps = 40, .overhead_ns = 100 },
	.cpu = { .gflops = 40, .overhead_ns = 100 },
	.dimm = { .gflops = 15, .gbps = 15, .overhead_ns = 100 },
	.pcie_gbps = 40, .channel_gbps = 20, .nr_channels = 2, .nr_dimms = 4,
};

/* PoCL's own code is not built for ThreadSanitizer. */
static bool with_gpu(void)
{
#ifdef __SANITIZE_THREAD__
	return false;
#else
	return true;
#endif
}

/* ---- many at once ------------------------------------------------------------------------ */

struct runner {
	pthread_t thread;
	struct fm *m;
	uint32_t seed;
};

/* cmocka's assertions jump, which only its own thread may do: results are checked there. */
struct outcome {
	float *x, *out;
	uint32_t *ids;
	uint32_t tokens;
};

enum { RUNNERS = 4, CALLS = 25, MOST = 24 };

static struct outcome outcomes[RUNNERS][CALLS];
static bool stop;
static int errors;

static void error(const char *message)
{
	print_error("%s\n", message);
	__atomic_add_fetch(&errors, 1, __ATOMIC_RELAXED);
}

static void *run(void *arg)
{
	struct runner *r = arg;
	const uint32_t h = r->m->spec.hidden, k = r->m->spec.top_k;
	struct ndp_moe_context *ctx;
	struct ndp_error err;

	if (ndp_moe_context_create(&ctx, &r->m->moe, MOST, &err)) {
		error(err.message);
		return NULL;
	}
	for (uint32_t c = 0; c < CALLS; c++) {
		struct outcome *o = &outcomes[r->seed][c];

		o->tokens = (c * 7 + r->seed * 3) % MOST + 1;
		o->x = fm_x(r->m, o->tokens, h, c * 10 + r->seed);
		o->out = malloc(o->tokens * h * sizeof(*o->out));
		o->ids = malloc(o->tokens * k * sizeof(*o->ids));
		if (ndp_moe_forward(ctx, 0, 0, o->x, h, o->tokens, o->out, h, NULL, &err))
			error(err.message);
		memcpy(o->ids, ndp_moe_last_ids(ctx, NULL), o->tokens * k * sizeof(*o->ids));
	}
	ndp_moe_context_free(ctx);
	return NULL;
}

static void *migrate(void *arg)
{
	struct fm **models = arg;
	uint64_t seed = 11;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		struct fm *m = models[ref_next(&seed) % 2];
		const uint32_t e = ref_next(&seed) % m->spec.experts;
		const uint32_t blocks = (m->spec.neurons + 31) / 32;
		struct ndp_placement p;
		struct ndp_error err;

		if (ref_next(&seed) & 1)
			ndp_placement_local(&p, blocks, ref_next(&seed) % 4);
		else
			ndp_placement_spread(&p, blocks, 1 + ref_next(&seed) % 15);
		if (ndp_weights_migrate(m->moe.layers[0].experts[e].weights, &p, NULL, &err))
			error(err.message);
		usleep(200);
	}
	return NULL;
}

static void *heat(void *arg)
{
	struct fm **models = arg;
	uint64_t seed = 13;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		struct fm *m = models[ref_next(&seed) % 2];
		const uint32_t first = ref_next(&seed) % (m->spec.experts - 2);
		const uint32_t hot[] = { first, first + 2 };
		struct ndp_error err;

		if (m->moe.options.gpu && ndp_moe_set_hot(&m->moe, 0, hot, 2, &err) < 0)
			error(err.message);
		usleep(500);
	}
	return NULL;
}

static void check_outcome(const struct fm *m, struct outcome *o)
{
	const uint32_t h = m->spec.hidden, k = m->spec.top_k;
	double want[h], tolerance[h], weights[k];

	for (uint32_t t = 0; t < o->tokens; t++) {
		fm_weights(m, 0, o->x + t * h, o->ids + t * k, weights);
		fm_reference(m, 0, o->x + t * h, k, o->ids + t * k, weights, true, want, tolerance);
		ref_assert_near(o->out + t * h, want, tolerance, h);
	}
	free(o->x);
	free(o->out);
	free(o->ids);
}

static void threads_and_migrations(void **state)
{
	struct ndp_cpu *cpu = fm_cpu(2);
	struct ndp_gpu *gpu = with_gpu() ? gpu_ref_open(4 << 20, UINT64_MAX, false) : NULL;
	struct ndp_device *dev = ref_open("soft:dimms=4,size=16M");
	struct runner runners[RUNNERS];
	struct fm *models[2];
	pthread_t mover, heater;

	UNUSED_STATE;
	errors = 0;
	stop = false;
	for (int i = 0; i < 2; i++) {
		const struct ndp_moe_options o = {
			.device = dev, .cpu = cpu, .gpu = gpu, .host = &even,
			.policy = i ? NDP_POLICY_SPLIT : NDP_POLICY_TRIMOE, .placement = "spread:2",
		};

		models[i] = fm_new(&specs[i], &o);
	}
	assert_int_equal(pthread_create(&mover, NULL, migrate, models), 0);
	assert_int_equal(pthread_create(&heater, NULL, heat, models), 0);
	for (uint32_t i = 0; i < RUNNERS; i++) {
		runners[i] = (struct runner){ .m = models[i % 2], .seed = i };
		assert_int_equal(pthread_create(&runners[i].thread, NULL, run, &runners[i]), 0);
	}
	for (uint32_t i = 0; i < RUNNERS; i++)
		pthread_join(runners[i].thread, NULL);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_join(mover, NULL);
	pthread_join(heater, NULL);
	assert_int_equal(errors, 0);
	for (uint32_t i = 0; i < RUNNERS; i++)
		for (uint32_t c = 0; c < CALLS; c++)
			check_outcome(runners[i].m, &outcomes[i][c]);
	for (int i = 0; i < 2; i++)
		fm_free(models[i]);
	ndp_close(dev);
	if (gpu)
		ndp_gpu_close(gpu);
	ndp_cpu_close(cpu);
}

static void *other_thread(void *arg)
{
	struct ndp_moe_context *ctx = arg;
	float x[96] = { 0 };
	struct ndp_error err;

	if (ndp_moe_forward(ctx, 0, 0, x, 96, 1, x, 96, NULL, &err) != -EPERM)
		error("another thread's context was taken");
	return NULL;
}

static void a_context_has_an_owner(void **state)
{
	struct ndp_cpu *cpu = fm_cpu(1);
	const struct ndp_moe_options o = { .cpu = cpu };
	struct fm *m = fm_new(&specs[0], &o);
	struct ndp_moe_context *ctx = fm_context(m, 1);
	pthread_t thread;

	UNUSED_STATE;
	errors = 0;
	assert_int_equal(pthread_create(&thread, NULL, other_thread, ctx), 0);
	pthread_join(thread, NULL);
	assert_int_equal(errors, 0);
	ndp_moe_context_free(ctx);
	fm_free(m);
	ndp_cpu_close(cpu);
}

/* ---- the same bits -------------------------------------------------------------------------- */

/* On the CPU alone, then with DIMMs; run to run, by any policy, on 1, 2 and 4 threads. */
static void deterministic(void **state)
{
	enum { TOKENS = 50 };
	static const uint32_t threads[] = { 1, 2, 4 };
	const uint32_t h = specs[0].hidden;

	UNUSED_STATE;
	for (int dimms = 0; dimms < 2; dimms++) {
		float *want = NULL, *x = NULL;

		for (int i = 0; i < 3; i++)
			for (int policy = 0; policy < NDP_POLICIES; policy += 3) {
				struct ndp_cpu *cpu = fm_cpu(threads[i]);
				struct ndp_device *dev = dimms ? ref_open("soft:dimms=4,size=16M") :
						NULL;
				const struct ndp_moe_options o = {
					.cpu = cpu, .device = dev, .deterministic = true,
					.host = &even, .policy = policy, .placement = "spread:2",
				};
				struct fm *m = fm_new(&specs[0], &o);
				struct ndp_moe_context *ctx = fm_context(m, TOKENS);
				float *out = malloc(TOKENS * h * sizeof(*out));
				struct ndp_moe_report r;
				struct ndp_error err;

				if (!x)
					x = fm_x(m, TOKENS, h, 1);
				for (int again = 0; again < 2; again++) {
					memset(out, 0xff, TOKENS * h * sizeof(*out));
					assert_int_equal(ndp_moe_forward(ctx, 0, 0, x, h, TOKENS,
									 out, h, &r, &err), 0);
					fm_check(m, ctx, 0, x, h, TOKENS, out, h);
					assert_true(!dimms == !r.domain[NDP_DOMAIN_NDP].tokens);
					assert_true(r.domain[NDP_DOMAIN_CPU].tokens > 0);
					if (!want) {
						want = malloc(TOKENS * h * sizeof(*want));
						memcpy(want, out, TOKENS * h * sizeof(*want));
					}
					assert_memory_equal(out, want, TOKENS * h * sizeof(*out));
				}
				free(out);
				ndp_moe_context_free(ctx);
				fm_free(m);
				ndp_close(dev);
				ndp_cpu_close(cpu);
			}
		free(want);
		free(x);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_and_migrations),
		cmocka_unit_test(a_context_has_an_owner),
		cmocka_unit_test(deterministic),
	};

	return cmocka_run_group_tests_name("forward_threads", tests, NULL, NULL);
}
