// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_ndpd.c - the placement daemon as a whole: the program is started, applications attach to it,
 * lie to it, die, and it dies, too. The device is the in-process one; what the kernel's adds is
 * tested in the guest.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <ndp/daemon.h>
#include <ndp/ndp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 3, EXPERTS = 16, H = 64, NEURONS = 128, BLOCKS = 4, SLOTS = 4 };

/* What ndpd is told: experts as large as DeepSeek-V2's, so that moving them matters. */
#define TOLD_HIDDEN 5120u
#define TOLD_BYTES (192ull * TOLD_HIDDEN * BLOCKS)

struct world {
	char dir[64];
	char socket[96];
	char config[96];
	char log[96];
	pid_t ndpd;
	struct ndp_device *dev;
	struct ndp_weights *weights[LAYERS][EXPERTS];
	struct ndp_attachment *a;
	uint64_t random;
};

static char ndpd_path[4096];

/* ---- the daemon ---------------------------------------------------------------------- */

static void wait_for_socket(const struct world *w)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	strcpy(address.sun_path, w->socket);
	for (int i = 0; i < 1000; i++) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		int r = connect(fd, (void *)&address, sizeof(address));

		close(fd);
		if (r == 0)
			return;
		usleep(10000);
	}
	fail_msg("ndpd does not listen");
}

static void start_ndpd_with(struct world *w, const char *option)
{
	w->ndpd = fork();
	if (w->ndpd == 0) {
		int log = open(w->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

		dup2(log, 1);
		dup2(log, 2);
		setenv("NDP_SHARE", "share", 0);
		execl(ndpd_path, "ndpd", "--config", w->config, "--socket", w->socket, option,
		      (char *)NULL);
		_exit(127);
	}
	assert_true(w->ndpd > 0);
	wait_for_socket(w);
}

static void start_ndpd(struct world *w)
{
	start_ndpd_with(w, NULL);
}

static void write_config(const struct world *w, const char *text)
{
	FILE *f = fopen(w->config, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static int end_ndpd(struct world *w, int signal)
{
	int status = 0;

	if (w->ndpd <= 0)
		return 0;
	kill(w->ndpd, signal);
	for (int i = 0; i < 1000 && waitpid(w->ndpd, &status, WNOHANG) == 0; i++)
		usleep(10000);
	w->ndpd = 0;
	return status;
}

static bool log_says(const struct world *w, const char *what)
{
	char text[65536];
	FILE *f = fopen(w->log, "r");
	size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

	if (f)
		fclose(f);
	text[n] = '\0';
	return strstr(text, what) != NULL;
}

/* The daemon's status, as ndpctl gets it. */
static json_t *status(const struct world *w)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ndp_msg ask = { NDP_MSG_STATUS, sizeof(ask) };
	struct ndp_msg_status m;
	struct iovec iov = { &m, sizeof(m) };
	char room[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room,
			      .msg_controllen = sizeof(room) };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), doc;
	json_t *root;
	char *text;

	strcpy(address.sun_path, w->socket);
	assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
	assert_int_equal(send(fd, &ask, sizeof(ask), 0), sizeof(ask));
	assert_int_equal(recvmsg(fd, &msg, 0), sizeof(m));
	memcpy(&doc, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(doc));
	text = calloc(1, m.json_bytes + 1);
	assert_int_equal(pread(doc, text, m.json_bytes, 0), m.json_bytes);
	root = json_loads(text, 0, NULL);
	assert_non_null(root);
	free(text);
	close(doc);
	close(fd);
	return root;
}

/* A number of the first running client's model. */
static double model_number(const struct world *w, const char *key, const char *sub)
{
	json_t *root = status(w), *c, *v = NULL;
	double n;
	size_t i;

	json_array_foreach(json_object_get(root, "clients"), i, c) {
		json_t *model = json_object_get(c, "model");

		if (model)
			v = json_object_get(model, key);
	}
	if (v && sub)
		v = json_object_get(v, sub);
	n = json_number_value(v);
	json_decref(root);
	return n;
}

static uint32_t nr_clients(const struct world *w)
{
	json_t *root = status(w);
	const uint32_t n = (uint32_t)json_array_size(json_object_get(root, "clients"));

	json_decref(root);
	return n - 1; /* who asks is one */
}

static void wait_for_clients(const struct world *w, uint32_t n)
{
	for (int i = 0; i < 1000 && nr_clients(w) != n; i++)
		usleep(10000);
	assert_int_equal(nr_clients(w), n);
}

static uint32_t nr_fds(pid_t pid)
{
	char path[64];
	uint32_t n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Without those of connections that have just ended. */
static uint32_t settled_fds(pid_t pid)
{
	uint32_t n = nr_fds(pid);

	for (int same = 0; same < 4;) {
		uint32_t now;

		usleep(50000);
		now = nr_fds(pid);
		same = now == n ? same + 1 : 0;
		n = now;
	}
	return n;
}

/* ---- applications ----------------------------------------------------------------------- */

static void load_weights(struct world *w, uint32_t layers)
{
	const struct ndp_expert_shape s = { H, H, NEURONS };
	char *packed = malloc(ndp_expert_block_bytes(&s));

	assert_int_equal(ndp_open(&w->dev, "soft:dimms=4,size=16M", NULL), 0);
	for (uint32_t l = 0; l < layers; l++) {
		for (uint32_t e = 0; e < EXPERTS; e++) {
			struct ndp_placement p;

			ndp_placement_local(&p, BLOCKS, e % 4);
			assert_int_equal(ndp_expert_create(&w->weights[l][e], w->dev, &s, &p, 0,
							   (uint64_t)l << 32 | e, NULL), 0);
			for (uint32_t b = 0; b < BLOCKS; b++) {
				ndp_bf16 *v = (ndp_bf16 *)packed;

				for (size_t i = 0; i < ndp_expert_block_bytes(&s) / 2; i++)
					v[i] = ndp_bf16_from_f32((float)((i * 7 + b + e) % 13) / 64);
				assert_int_equal(ndp_weights_write(w->weights[l][e], b, 1, packed), 0);
			}
			assert_int_equal(ndp_weights_seal(w->weights[l][e]), 0);
		}
	}
	free(packed);
}

static void free_weights(struct world *w)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t e = 0; e < EXPERTS; e++) {
			ndp_weights_free(w->weights[l][e]);
			w->weights[l][e] = NULL;
		}
	ndp_close(w->dev);
	w->dev = NULL;
}

static struct ndp_attach_options attach_options(const struct world *w)
{
	return (struct ndp_attach_options){
		.socket = w->socket, .name = "model", .device = w->dev, .layers = LAYERS,
		.experts = EXPERTS, .top_k = 2, .hidden = TOLD_HIDDEN, .intermediate = NEURONS,
		.expert_bytes = TOLD_BYTES, .gpu_bytes = LAYERS * SLOTS * TOLD_BYTES,
	};
}

static void attach(struct world *w)
{
	const struct ndp_attach_options o = attach_options(w);
	struct ndp_error err;

	if (ndp_placement_attach(&w->a, &o, &err) < 0)
		fail_msg("%s", err.message);
}

static uint32_t below(struct world *w, uint32_t n)
{
	w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(w->random >> 33) % n;
}

/* Steps in which four experts from @hot on get most of the tokens. */
static void post_steps(struct world *w, uint32_t steps, uint32_t hot)
{
	for (uint32_t i = 0; i < steps; i++) {
		for (uint32_t l = 0; l < LAYERS; l++) {
			uint32_t tokens[EXPERTS] = { 0 };

			for (int t = 0; t < 1024; t++)
				tokens[below(w, 10) < 7 ? (hot + below(w, 4)) % EXPERTS :
							  below(w, EXPERTS)]++;
			ndp_placement_post(w->a, l, tokens);
		}
		usleep(2000);
	}
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	strcpy(w->dir, "/tmp/ndpd-test-XXXXXX");
	if (!mkdtemp(w->dir))
		return -1;
	snprintf(w->socket, sizeof(w->socket), "%s/socket", w->dir);
	snprintf(w->config, sizeof(w->config), "%s/ndpd.conf", w->dir);
	snprintf(w->log, sizeof(w->log), "%s/log", w->dir);
	write_config(w, "[placement]\nfirst_decide_every = 2\ndecide_every = 8\nstay_ms = 20\n");
	w->random = 1;
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;
	char command[128];

	ndp_placement_detach(w->a);
	if (w->dev)
		free_weights(w);
	end_ndpd(w, SIGKILL);
	snprintf(command, sizeof(command), "rm -rf '%s'", w->dir);
	if (system(command))
		return -1;
	free(w);
	return 0;
}

/* ---- what it is for ------------------------------------------------------------------------ */

/* Everything an expert computes, wherever it lies. */
static void compute(struct world *w, float out[EXPERTS][H])
{
	struct ndp_io *x, *y;
	ndp_bf16 in[H];

	for (int i = 0; i < H; i++)
		in[i] = ndp_bf16_from_f32((float)(i % 5 - 2) / 8);
	assert_int_equal(ndp_io_create(&x, w->dev, 0, 128, NULL), 0);
	assert_int_equal(ndp_io_create(&y, w->dev, 0, 256, NULL), 0);
	assert_int_equal(ndp_io_write(x, 15, 0, in, sizeof(in)), 0);
	for (uint32_t e = 0; e < EXPERTS; e++) {
		const struct ndp_cmd c = { .op = NDP_OP_FFN_EXPERT, .weights = w->weights[0][e],
					   .x = x, .y = y, .x_mask = 15, .tokens = 1, .ldx = 128,
					   .ldy = 256 };
		struct ndp_result res;

		assert_int_equal(ndp_run(w->dev, &c, &res), 0);
		assert_int_equal(ndp_io_reduce(y, res.dimm_mask, 0, 256, out[e], H, 1, H), 0);
	}
	ndp_io_free(x);
	ndp_io_free(y);
}

/* Sums of the same numbers in another order: equal, or off by the last bits. */
static void expect_close(float a[EXPERTS][H], float b[EXPERTS][H])
{
	for (uint32_t e = 0; e < EXPERTS; e++)
		for (int i = 0; i < H; i++)
			assert_true(__builtin_fabsf(a[e][i] - b[e][i]) <=
				    1e-5f * __builtin_fabsf(a[e][i]) + 1e-6f);
}

static void it_moves_what_is_worth_moving_and_results_stay(void **state)
{
	struct world *w = *state;
	static float before[EXPERTS][H], after[EXPERTS][H];
	double moved = 0;

	start_ndpd(w);
	load_weights(w, LAYERS);
	compute(w, before);
	attach(w);
	for (int i = 0; i < 40 && moved < 3; i++) {
		post_steps(w, 30, 3);
		compute(w, after);
		expect_close(before, after);
		moved = model_number(w, "migrations", "rebalance") +
			model_number(w, "migrations", "relayout") +
			model_number(w, "migrations", "prefetch");
	}
	assert_true(moved >= 3);
	assert_true(ndp_placement_generation(w->a) > LAYERS);
	assert_int_equal(model_number(w, "rollbacks", NULL), 0);
	ndp_placement_detach(w->a);
	w->a = NULL;
	wait_for_clients(w, 0);
	assert_int_equal(end_ndpd(w, SIGTERM), 0);
}

/* Where experts really lie is what it publishes. */
static void the_page_says_where_experts_are(void **state)
{
	struct world *w = *state;
	uint32_t masks[EXPERTS];
	uint64_t hot;

	start_ndpd(w);
	load_weights(w, LAYERS);
	attach(w);
	post_steps(w, 200, 5);
	for (int i = 0; i < 500 && model_number(w, "under_way", NULL) > 0; i++)
		usleep(10000);
	for (uint32_t l = 0; l < LAYERS; l++) {
		assert_int_equal(ndp_placement_read(w->a, l, &hot, masks), 0);
		assert_in_range(__builtin_popcountll(hot), 0, LAYERS * SLOTS);
		for (uint32_t e = 0; e < EXPERTS; e++) {
			struct ndp_weights_info info;

			assert_int_equal(ndp_weights_info(w->weights[l][e], &info), 0);
			assert_int_equal(masks[e], ndp_placement_mask(&info.placement));
		}
	}
}

static void a_dry_run_moves_nothing_and_says_what_it_would(void **state)
{
	struct world *w = *state;
	uint64_t hot;

	start_ndpd_with(w, "--dry-run");
	load_weights(w, LAYERS);
	attach(w);
	post_steps(w, 150, 3);
	assert_int_equal(ndp_placement_read(w->a, 0, &hot, NULL), -ENODATA);
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t e = 0; e < EXPERTS; e++) {
			struct ndp_weights_info info;

			assert_int_equal(ndp_weights_info(w->weights[l][e], &info), 0);
			assert_int_equal(info.moves, 0);
		}
	assert_true(model_number(w, "decisions", NULL) > 0);
	assert_true(log_says(w, "would start"));
}

static void a_model_without_a_device_gets_a_hot_set_only(void **state)
{
	struct world *w = *state;

	start_ndpd(w);
	attach(w);
	post_steps(w, 150, 3);
	assert_int_equal(model_number(w, "migrations", "rebalance"), 0);
	assert_int_equal(model_number(w, "migrations", "relayout"), 0);
	assert_true(model_number(w, "posts", NULL) > 0);
}

/* ---- it dies, they die ------------------------------------------------------------------------ */

static void wait_attached(struct world *w, bool attached)
{
	for (int i = 0; i < 1000; i++) {
		struct ndp_attach_state s;

		ndp_placement_state(w->a, &s);
		if (s.attached == attached)
			return;
		usleep(10000);
	}
	fail_msg("still %sattached", attached ? "not " : "");
}

static void a_daemon_that_is_killed_is_missed_by_nobody(void **state)
{
	struct world *w = *state;
	static float before[EXPERTS][H], after[EXPERTS][H];

	start_ndpd(w);
	load_weights(w, LAYERS);
	compute(w, before);
	attach(w);
	for (int i = 0; i < 5; i++) {
		uint64_t old = 0, fresh = 0;
		int had;

		post_steps(w, 40, 3 * (uint32_t)i);
		had = ndp_placement_read(w->a, 0, &old, NULL);
		end_ndpd(w, SIGKILL);
		wait_attached(w, false);
		post_steps(w, 5, 3);
		compute(w, after);
		expect_close(before, after);
		start_ndpd(w);
		wait_attached(w, true);
		/* What GPU memory held is known to the new one. */
		assert_int_equal(had, 0);
		assert_int_equal(ndp_placement_read(w->a, 0, &fresh, NULL), 0);
		assert_int_equal(fresh, old);
	}
	assert_int_equal(nr_clients(w), 1);
}

/* An application that ends in the middle of everything. */
static void application(struct world *w)
{
	struct ndp_attach_options o;

	w->random = (uint64_t)getpid();
	load_weights(w, LAYERS);
	o = attach_options(w);
	if (ndp_placement_attach(&w->a, &o, NULL) < 0)
		_exit(1);
	for (;;)
		post_steps(w, 10, below(w, EXPERTS));
}

static void applications_that_are_killed_leave_nothing(void **state)
{
	enum { AT_ONCE = 3, ROUNDS = 8 };
	struct world *w = *state;
	uint32_t fds;

	start_ndpd(w);
	wait_for_clients(w, 0);
	fds = settled_fds(w->ndpd);
	for (int round = 0; round < ROUNDS; round++) {
		pid_t pid[AT_ONCE];

		for (int i = 0; i < AT_ONCE; i++) {
			pid[i] = fork();
			if (pid[i] == 0) {
				signal(SIGALRM, SIG_DFL);
				alarm(30);
				application(w);
			}
		}
		usleep(50000 + (useconds_t)below(w, 150000));
		for (int i = 0; i < AT_ONCE; i++) {
			kill(pid[i], SIGKILL);
			waitpid(pid[i], NULL, 0);
		}
	}
	wait_for_clients(w, 0);
	assert_int_equal(settled_fds(w->ndpd), fds);
	assert_int_equal(end_ndpd(w, SIGTERM), 0);
}

/* ---- lies --------------------------------------------------------------------------------------- */

struct lie {
	const char *name;
	int code;
	void (*tell)(struct ndp_msg_hello *h, struct ndp_ring *ring);
	size_t ring_bytes; /* 0: as many as are right */
	int seals; /* 0: the right ones */
	int fds; /* 0: as many as are right */
	size_t bytes; /* of the message; 0: all */
};

static void other_version(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->version = 7;
}

static void unknown_flags(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->flags = 0x80;
}

static void endless_name(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	memset(h->name, 'x', sizeof(h->name));
}

static void quotes_in_name(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	strcpy(h->name, "a\"} 1\nb");
}

static void no_layers(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->layers = 0;
}

static void too_many_experts(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->experts = 1u << 31;
}

static void memory_bomb(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	h->layers = ring->layers = 1024;
	h->experts = ring->experts = 4096;
	ring->slots = 16;
	ring->slot_bytes = ndp_ring_slot_bytes(4096);
}

static void absurd_bytes(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->expert_bytes = UINT64_MAX;
}

static void other_ring(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->magic = 1;
}

static void other_model_in_ring(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->experts++;
}

static void more_slots_than_bytes(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->slots = 65536;
}

static void odd_slots(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->slots = 17;
}

static void small_slots(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)h;
	ring->slot_bytes = 0;
}

static void placement_without_dimms(struct ndp_msg_hello *h, struct ndp_ring *ring)
{
	(void)ring;
	h->flags = NDP_HELLO_PLACEMENT;
}

static const struct lie lies[] = {
	{ .name = "other version", .code = -EPROTO, .tell = other_version },
	{ .name = "unknown flags", .code = -EINVAL, .tell = unknown_flags },
	{ .name = "endless name", .code = -EINVAL, .tell = endless_name },
	{ .name = "quotes in the name", .code = -EINVAL, .tell = quotes_in_name },
	{ .name = "no layers", .code = -EINVAL, .tell = no_layers },
	{ .name = "too many experts", .code = -EINVAL, .tell = too_many_experts },
	{ .name = "memory bomb", .code = -ENOSPC, .tell = memory_bomb,
	  .ring_bytes = sizeof(struct ndp_ring) + 16 * 16448 },
	{ .name = "absurd bytes", .code = -EINVAL, .tell = absurd_bytes },
	{ .name = "no ring", .code = -EPROTO, .tell = other_ring },
	{ .name = "another model's ring", .code = -EINVAL, .tell = other_model_in_ring },
	{ .name = "more slots than bytes", .code = -EINVAL, .tell = more_slots_than_bytes },
	{ .name = "odd slots", .code = -EINVAL, .tell = odd_slots },
	{ .name = "small slots", .code = -EINVAL, .tell = small_slots },
	{ .name = "placement without DIMMs", .code = -EINVAL, .tell = placement_without_dimms,
	  .fds = 2 },
	{ .name = "a ring that may shrink", .code = -EPERM, .seals = F_SEAL_GROW },
	{ .name = "a small ring", .code = -EINVAL, .ring_bytes = 64 },
	{ .name = "an endless ring", .code = -EINVAL, .ring_bytes = 1ull << 40 },
	{ .name = "no descriptor", .code = -EPROTO, .fds = -1 },
	{ .name = "three descriptors", .code = -EPROTO, .fds = 3 },
	{ .name = "half a message", .code = -EPROTO, .bytes = 100 },
	{ .name = "four bytes", .code = -EPROTO, .bytes = 4 },
};

static int hello_of(const struct world *w, const struct lie *lie)
{
	const size_t right = sizeof(struct ndp_ring) + 16 * ndp_ring_slot_bytes(EXPERTS);
	struct ndp_msg_hello h = { .head = { NDP_MSG_HELLO, sizeof(h) },
				   .version = NDP_DAEMON_VERSION, .name = "liar",
				   .layers = LAYERS, .experts = EXPERTS, .top_k = 2,
				   .hidden = H, .intermediate = NEURONS, .expert_bytes = 1000 };
	struct ndp_ring ring = { .magic = NDP_RING_MAGIC, .version = NDP_DAEMON_VERSION,
				 .layers = LAYERS, .experts = EXPERTS, .slots = 16,
				 .slot_bytes = ndp_ring_slot_bytes(EXPERTS) };
	int nr = lie->fds < 0 ? 0 : lie->fds ? lie->fds : 1, fds[3];
	struct iovec iov = { &h, lie->bytes ? lie->bytes : sizeof(h) };
	char room[CMSG_SPACE(sizeof(fds))] __attribute__((aligned(8))) = { 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (lie->tell)
		lie->tell(&h, &ring);
	fds[0] = fds[1] = fds[2] = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fds[0], (off_t)(lie->ring_bytes ? lie->ring_bytes : right)), 0);
	assert_int_equal(pwrite(fds[0], &ring, lie->ring_bytes == 64 ? 64 : sizeof(ring), 0),
			 lie->ring_bytes == 64 ? 64 : sizeof(ring));
	assert_int_equal(fcntl(fds[0], F_ADD_SEALS, lie->seals ? lie->seals :
			       F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
	if (nr) {
		struct cmsghdr *c;

		msg.msg_control = room;
		msg.msg_controllen = CMSG_SPACE((size_t)nr * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)nr * sizeof(int));
		memcpy(CMSG_DATA(c), fds, (size_t)nr * sizeof(int));
	}
	strcpy(address.sun_path, w->socket);
	assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
	assert_true(sendmsg(fd, &msg, MSG_NOSIGNAL) > 0);
	close(fds[0]);
	return fd;
}

static void lies_are_refused_and_harm_nobody(void **state)
{
	const uint32_t posted = LAYERS * sizeof(lies) / sizeof(lies[0]);
	struct world *w = *state;
	uint32_t fds;

	start_ndpd(w);
	load_weights(w, LAYERS);
	attach(w);
	wait_for_clients(w, 1);
	fds = settled_fds(w->ndpd);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct ndp_msg_error e = { 0 };
		int fd = hello_of(w, &lies[i]);
		ssize_t n = recv(fd, &e, sizeof(e), 0);

		if (n != sizeof(e) || e.code != lies[i].code)
			fail_msg("%s: %zd bytes, type %u, code %d (%s)", lies[i].name, n, e.head.type,
				 e.code, e.message);
		assert_int_equal(recv(fd, &e, sizeof(e), 0), 0); /* and out */
		close(fd);
		post_steps(w, 1, 1);
	}
	wait_for_clients(w, 1);
	assert_int_equal(settled_fds(w->ndpd), fds);
	for (int i = 0; i < 500 && model_number(w, "posts", NULL) < posted; i++)
		usleep(10000);
	assert_int_equal(model_number(w, "posts", NULL), posted);
}

static void weights_that_are_not_the_models_are_refused(void **state)
{
	struct world *w = *state;
	struct ndp_attach_options o;
	struct ndp_attachment *a;
	struct ndp_error err;

	start_ndpd(w);
	load_weights(w, LAYERS);
	o = attach_options(w);
	o.intermediate = NEURONS * 2;
	assert_int_equal(ndp_placement_attach(&a, &o, &err), -EINVAL);
	assert_non_null(strstr(err.message, "blocks"));
	o = attach_options(w);
	o.experts = EXPERTS + 1;
	assert_int_equal(ndp_placement_attach(&a, &o, &err), -ENOENT);
	assert_non_null(strstr(err.message, "missing"));
	wait_for_clients(w, 0);
}

/* A client writes whatever it likes into its ring, and what it should not into ndpd's cursor. */
static void a_wild_ring_harms_nobody(void **state)
{
	static const struct lie honest = { .name = "wild" };
	struct world *w = *state;
	struct ndp_ring_slot *slot;
	struct ndp_ring *ring;
	int fd;

	start_ndpd(w);
	attach(w);
	fd = hello_of(w, &honest);
	wait_for_clients(w, 2);
	close(fd);
	wait_for_clients(w, 1);
	/* The library's own ring, found among this process's mappings by its name. */
	ring = NULL;
	for (int i = 3; i < 256 && !ring; i++) {
		char link[64] = "", path[64];

		snprintf(path, sizeof(path), "/proc/self/fd/%d", i);
		if (readlink(path, link, sizeof(link) - 1) > 0 && strstr(link, "ndp-loads"))
			ring = mmap(NULL, sizeof(*ring) + 1024 * ndp_ring_slot_bytes(EXPERTS),
				    PROT_READ | PROT_WRITE, MAP_SHARED, i, 0);
	}
	assert_non_null(ring);
	slot = (struct ndp_ring_slot *)(ring + 1);
	ring->slots = 3;
	ring->slot_bytes = 1u << 31;
	ring->experts = 1u << 30;
	ring->tail = 12345;
	ring->head = 1; /* a slot that is never finished */
	usleep(300000);
	slot->layer = 77;
	ndp_ring_slot_tokens(slot)[0] = UINT32_MAX;
	slot->seq = 1;
	usleep(1500000);
	ring->head = UINT64_MAX;
	usleep(200000);
	assert_int_equal(nr_clients(w), 1);
	munmap(ring, sizeof(*ring) + 1024 * ndp_ring_slot_bytes(EXPERTS));
	assert_int_equal(end_ndpd(w, SIGTERM), 0);
}

static void whoever_says_nothing_is_thrown_out(void **state)
{
	struct world *w = *state;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	struct ndp_msg_error e;

	start_ndpd(w);
	strcpy(address.sun_path, w->socket);
	assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
	assert_int_equal(recv(fd, &e, sizeof(e), 0), sizeof(e));
	assert_int_equal(e.code, -ETIMEDOUT);
	close(fd);
}

/* ---- configuration --------------------------------------------------------------------------------- */

static int check_config(const struct world *w, char *says, size_t size)
{
	char command[256 + sizeof(ndpd_path)];
	FILE *f;
	size_t n;
	int r;

	snprintf(command, sizeof(command), "NDP_SHARE=share %s --check-config --config '%s' 2>&1",
		 ndpd_path, w->config);
	f = popen(command, "r");
	assert_non_null(f);
	n = fread(says, 1, size - 1, f);
	says[n] = '\0';
	r = pclose(f);
	return WEXITSTATUS(r);
}

static void what_is_wrong_in_the_configuration_is_named(void **state)
{
	static const struct {
		const char *text, *says;
	} wrong[] = {
		{ "[daemon]\npoll_ms = 0\n", "line 2: poll_ms: '0' is no number from 1 to 1000" },
		{ "[daemon]\n\npol_ms = 5\n", "line 3: [daemon] has no key 'pol_ms'" },
		{ "[demon]\npoll_ms = 5\n", "line 2: there is no section [demon]" },
		{ "[daemon]\ndry_run = maybe\n", "neither yes nor no" },
		{ "[daemon]\npoll_ms = 5\npoll_ms = 6\n", "line 3: poll_ms is there twice" },
		{ "[placement]\npolicy = fast\n", "no policy" },
		{ "[placement]\nlink_share = 1.5\n", "from 0 to 1" },
		{ "[placement]\nhysteresis = nan\n", "from 0 to 100" },
		{ "[limits]\nclient_memory = 3X\n", "K, M, G, T may follow" },
		{ "[weights]\nmodel = -1\n", "no weight" },
		{ "[metrics]\nlisten = http\n", "neither unix:/PATH nor" },
		{ "[host]\nprofile = nowhere\n", "nowhere" },
		{ "what\n", "line 1" },
	};
	struct world *w = *state;
	char says[1024];

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		write_config(w, wrong[i].text);
		assert_int_equal(check_config(w, says, sizeof(says)), 1);
		if (!strstr(says, wrong[i].says))
			fail_msg("%s: %s", wrong[i].text, says);
	}
	write_config(w, "; all is well\n[weights]\nmodel = 2.5\n[limits]\nclient_memory = 64M\n");
	assert_int_equal(check_config(w, says, sizeof(says)), 0);
	assert_string_equal(says, "");
}

static void a_configuration_that_is_wrong_is_not_taken_over(void **state)
{
	struct world *w = *state;

	start_ndpd(w);
	write_config(w, "[daemon]\nnonsense = 1\n");
	kill(w->ndpd, SIGHUP);
	for (int i = 0; i < 500 && !log_says(w, "stays as it was"); i++)
		usleep(10000);
	assert_true(log_says(w, "line 2: [daemon] has no key 'nonsense'"));
	write_config(w, "[limits]\nclients_per_user = 3\n");
	kill(w->ndpd, SIGHUP);
	for (int i = 0; i < 500 && !log_says(w, "was read again"); i++)
		usleep(10000);
	assert_true(log_says(w, "was read again"));
	assert_int_equal(nr_clients(w), 0);
}

static void a_user_has_so_many_clients_and_no_more(void **state)
{
	struct world *w = *state;
	struct ndp_attachment *a[3] = { NULL };
	struct ndp_attach_options o;
	struct ndp_error err;

	write_config(w, "[limits]\nclients_per_user = 2\n");
	start_ndpd(w);
	wait_for_clients(w, 0);
	o = attach_options(w);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ndp_placement_attach(&a[i], &o, &err), 0);
	assert_int_equal(ndp_placement_attach(&a[2], &o, &err), -EUSERS);
	assert_non_null(strstr(err.message, "clients_per_user"));
	for (int i = 0; i < 2; i++)
		ndp_placement_detach(a[i]);
}

static void a_second_daemon_does_not_take_the_socket(void **state)
{
	struct world *w = *state;
	pid_t first;
	int status;

	start_ndpd(w);
	first = w->ndpd;
	start_ndpd(w); /* returns at once: the first one listens */
	for (int i = 0; i < 500 && waitpid(w->ndpd, &status, WNOHANG) == 0; i++)
		usleep(10000);
	assert_true(log_says(w, "another ndpd listens there"));
	w->ndpd = first;
	assert_int_equal(nr_clients(w), 0);
}

#define IN_WORLD(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(it_moves_what_is_worth_moving_and_results_stay),
		IN_WORLD(the_page_says_where_experts_are),
		IN_WORLD(a_dry_run_moves_nothing_and_says_what_it_would),
		IN_WORLD(a_model_without_a_device_gets_a_hot_set_only),
		IN_WORLD(a_daemon_that_is_killed_is_missed_by_nobody),
		IN_WORLD(applications_that_are_killed_leave_nothing),
		IN_WORLD(lies_are_refused_and_harm_nobody),
		IN_WORLD(weights_that_are_not_the_models_are_refused),
		IN_WORLD(a_wild_ring_harms_nobody),
		IN_WORLD(whoever_says_nothing_is_thrown_out),
		IN_WORLD(what_is_wrong_in_the_configuration_is_named),
		IN_WORLD(a_configuration_that_is_wrong_is_not_taken_over),
		IN_WORLD(a_user_has_so_many_clients_and_no_more),
		IN_WORLD(a_second_daemon_does_not_take_the_socket),
	};
	ssize_t n = readlink("/proc/self/exe", ndpd_path, sizeof(ndpd_path) - 32);
	char *slash;

	/* build/unit/test_ndpd: ndpd is one folder up. */
	if (n < 0)
		return 1;
	ndpd_path[n] = '\0';
	slash = strrchr(ndpd_path, '/');
	strcpy(slash, "/../ndpd");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
