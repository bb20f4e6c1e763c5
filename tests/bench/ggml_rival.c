// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ggml_rival.c - the expert FFN by ggml, for `ndp-bench cpu` to measure itself against
 * (tools/ndp-bench/cpu_ggml.c starts it; ggml-rival.sh builds it against the
 * distribution's libggml and runs it with the C library that one wants).
 *
 * What llama.cpp computes of a layer's experts: MUL_MAT_ID of all experts' gate and of
 * their up (BF16, as in model files) with the tokens (FP32), SwiGLU of the two, MUL_MAT_ID
 * with down.  All tokens name the same expert.
 *
 *   ggml_rival HIDDEN NEURONS EXPERTS MAX_TOKENS THREADS BACKENDS
 *
 * Descriptor 3 is memory shared with ndp-bench: gate, up, down of an expert; x in BF16; y
 * in FP32, all rows dense.  Standard input brings commands of two 32-bit numbers, standard
 * output takes a 32-bit zero for each one that is done:
 *   1 EXPERT  take the weights
 *   2 TOKENS  of x are the input from now on
 *   3 EXPERT  compute y
 *   4 0       nothing: what an answer costs
 * A message about what is wrong goes to standard error, and the program ends.
 */
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOAD = 1, PREPARE, RUN, NOTHING, HUGE = 2 << 20, MAX_NODES = 16 };

static uint32_t hidden, neurons, experts, max_tokens;
static size_t weights;		/* of a matrix */
static uint16_t *shared;
static ggml_backend_t backend;
static ggml_backend_dev_t device;
static uint16_t *m[3];		/* gate, up, down of all experts */
static ggml_backend_buffer_t buffer[3];

/* For one number of tokens. */
static struct ggml_context *context;
static ggml_backend_buffer_t results, of_y;
static struct ggml_tensor *x, *ids, *y;
static struct ggml_cgraph *graph;
static uint32_t tokens;
static int32_t chosen;

__attribute__((noreturn, format(printf, 1, 2)))
static void die(const char *format, ...)
{
	va_list list;

	fputs("ggml_rival: ", stderr);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
	exit(1);
}

static uint32_t number(const char *text)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (!n || *end || n > 65536)
		die("a number within 1 and 65536 is wanted, not '%.40s'", text);
	return (uint32_t)n;
}

static void *huge_pages(size_t bytes)
{
	void *p;

	bytes = (bytes + HUGE - 1) / HUGE * HUGE;
	if (posix_memalign(&p, HUGE, bytes))
		die("no memory for %zu MiB of weights", bytes >> 20);
	madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 0, bytes);
	return p;
}

/* Only what is wrong: standard error is ndp-bench's. */
static void log_errors(enum ggml_log_level level, const char *text, void *arg)
{
	(void)arg;
	if (level == GGML_LOG_LEVEL_ERROR)
		fputs(text, stderr);
}

/* The best of @backends for this CPU: ggml chooses. */
static void open_backend(const char *backends, int threads)
{
	ggml_backend_set_n_threads_t set_threads;
	ggml_backend_reg_t reg;

	ggml_log_set(log_errors, NULL);
	ggml_backend_load_all_from_path(backends);
	device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
	if (!device)
		die("ggml found no CPU back end in %s", backends);
	backend = ggml_backend_dev_init(device, NULL);
	reg = ggml_backend_dev_backend_reg(device);
	set_threads = (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(
		reg, "ggml_backend_set_n_threads");
	if (!backend || !set_threads)
		die("ggml's CPU back end cannot be opened");
	set_threads(backend, threads);
}

static void put(struct ggml_tensor *t, ggml_backend_buffer_t in, void *at)
{
	if (ggml_backend_tensor_alloc(in, t, at) != GGML_STATUS_SUCCESS)
		die("ggml does not take a tensor of %zu bytes", ggml_nbytes(t));
}

static void choose(uint32_t expert)
{
	int32_t *id = ids->data;

	for (uint32_t t = 0; t < tokens && chosen != (int32_t)expert; t++)
		id[t] = (int32_t)expert;
	chosen = (int32_t)expert;
}

static void prepare(uint32_t n)
{
	struct ggml_init_params params = {
		.mem_size = MAX_NODES * ggml_tensor_overhead() + ggml_graph_overhead(),
		.no_alloc = true,
	};
	struct ggml_tensor *w[3], *h, *of_x[2];
	const uint16_t *from = shared + 3 * weights;

	if (n > max_tokens)
		die("%u tokens, of at most %u", n, max_tokens);
	ggml_backend_buffer_free(results);
	ggml_free(context);
	context = ggml_init(params);
	if (!context)
		die("out of memory");
	for (int i = 0; i < 3; i++) {
		w[i] = ggml_new_tensor_3d(context, GGML_TYPE_BF16, i < 2 ? hidden : neurons,
					  i < 2 ? neurons : hidden, experts);
		put(w[i], buffer[i], m[i]);
	}
	tokens = n;
	x = ggml_new_tensor_3d(context, GGML_TYPE_F32, hidden, 1, tokens);
	ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, tokens);
	for (int i = 0; i < 2; i++)
		of_x[i] = ggml_mul_mat_id(context, w[i], x, ids);
	h = ggml_swiglu_split(context, of_x[0], of_x[1]);
	y = ggml_mul_mat_id(context, w[2], h, ids);
	put(y, of_y, ggml_backend_buffer_get_base(of_y));
	graph = ggml_new_graph(context);
	ggml_build_forward_expand(graph, y);
	results = ggml_backend_alloc_ctx_tensors(context, backend);
	if (!results)
		die("ggml has no memory for %u tokens", tokens);
	for (size_t i = 0; i < (size_t)tokens * hidden; i++) {
		uint32_t bits = (uint32_t)from[i] << 16;

		memcpy((float *)x->data + i, &bits, sizeof(bits));
	}
	chosen = -1;
}

static void run(uint32_t expert)
{
	if (!tokens || expert >= experts)
		die("expert %u of %u is wanted, for %u tokens", expert, experts, tokens);
	choose(expert);
	if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS)
		die("ggml cannot compute an expert of %ux%u for %u tokens", hidden, neurons,
		    tokens);
}

int main(int argc, char **argv)
{
	size_t bytes;
	uint32_t command[2], done = 0;

	if (argc != 7)
		die("usage: ggml_rival HIDDEN NEURONS EXPERTS MAX_TOKENS THREADS BACKENDS");
	hidden = number(argv[1]);
	neurons = number(argv[2]);
	experts = number(argv[3]);
	max_tokens = number(argv[4]);
	weights = (size_t)hidden * neurons;
	bytes = 3 * weights * sizeof(*shared) +
		(size_t)max_tokens * hidden * (sizeof(*shared) + sizeof(float));
	shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	if (shared == MAP_FAILED)
		die("descriptor 3 is not the memory of ndp-bench");
	open_backend(argv[6], (int)number(argv[5]));
	for (int i = 0; i < 3; i++) {
		bytes = experts * weights * sizeof(*m[i]);
		m[i] = huge_pages(bytes);
		buffer[i] = ggml_backend_dev_buffer_from_host_ptr(device, m[i], bytes, bytes);
		if (!buffer[i])
			die("ggml does not take weights where they are");
		ggml_backend_buffer_set_usage(buffer[i], GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
	}
	bytes = (size_t)max_tokens * hidden * sizeof(float);
	of_y = ggml_backend_dev_buffer_from_host_ptr(
		device, shared + 3 * weights + (size_t)max_tokens * hidden, bytes, bytes);
	if (!of_y)
		die("ggml does not take y where it is");
	while (read(0, command, sizeof(command)) == sizeof(command)) {
		switch (command[0]) {
		case LOAD:
			if (command[1] >= experts)
				die("expert %u of %u is to be loaded", command[1], experts);
			for (int i = 0; i < 3; i++)
				memcpy(m[i] + command[1] * weights, shared + i * weights,
				       weights * sizeof(*shared));
			break;
		case PREPARE:
			prepare(command[1]);
			break;
		case RUN:
			run(command[1]);
			break;
		case NOTHING:
			break;
		default:
			die("unknown command %u", command[0]);
		}
		if (write(1, &done, sizeof(done)) != sizeof(done))
			return 0;
	}
	return 0;
}
