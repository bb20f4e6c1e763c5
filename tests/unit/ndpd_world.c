// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ndpd_world.c - see ndpd_world.h.
 */
#include "ndpd_world.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

char ndpd_path[4096];

int find_ndpd(void)
{
	ssize_t n = readlink("/proc/self/exe", ndpd_path, sizeof(ndpd_path) - 32);
	char *slash;

	if (n < 0)
		return -1;
	ndpd_path[n] = '\0';
	slash = strrchr(ndpd_path, '/');
	strcpy(slash, "/../ndpd");
	return 0;
}

/* ---- the daemon ---------------------------------------------------------------------- */

void wait_for_socket(const struct world *w)
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

void start_ndpd_with(struct world *w, const char *option)
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

void start_ndpd(struct world *w)
{
	start_ndpd_with(w, NULL);
}

void write_config(const struct world *w, const char *text)
{
	FILE *f = fopen(w->config, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

int end_ndpd(struct world *w, int signal)
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

bool log_says(const struct world *w, const char *what)
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
json_t *status(const struct world *w)
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
double model_number(const struct world *w, const char *key, const char *sub)
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

uint32_t nr_clients(const struct world *w)
{
	json_t *root = status(w);
	const uint32_t n = (uint32_t)json_array_size(json_object_get(root, "clients"));

	json_decref(root);
	return n - 1; /* who asks is one */
}

void wait_for_clients(const struct world *w, uint32_t n)
{
	for (int i = 0; i < 1000 && nr_clients(w) != n; i++)
		usleep(10000);
	assert_int_equal(nr_clients(w), n);
}

uint32_t nr_fds(pid_t pid)
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
uint32_t settled_fds(pid_t pid)
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

void load_weights(struct world *w, uint32_t layers)
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

void free_weights(struct world *w)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t e = 0; e < EXPERTS; e++) {
			ndp_weights_free(w->weights[l][e]);
			w->weights[l][e] = NULL;
		}
	ndp_close(w->dev);
	w->dev = NULL;
}

struct ndp_attach_options attach_options(const struct world *w)
{
	return (struct ndp_attach_options){
		.socket = w->socket, .name = "model", .device = w->dev, .layers = LAYERS,
		.experts = EXPERTS, .top_k = 2, .hidden = TOLD_HIDDEN, .intermediate = NEURONS,
		.expert_bytes = TOLD_BYTES, .gpu_bytes = LAYERS * SLOTS * TOLD_BYTES,
	};
}

void attach(struct world *w)
{
	const struct ndp_attach_options o = attach_options(w);
	struct ndp_error err;

	if (ndp_placement_attach(&w->a, &o, &err) < 0)
		fail_msg("%s", err.message);
}

uint32_t below(struct world *w, uint32_t n)
{
	w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(w->random >> 33) % n;
}

/* Steps in which four experts from @hot on get most of the tokens. */
void post_steps(struct world *w, uint32_t steps, uint32_t hot)
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

int setup(void **state)
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

int teardown(void **state)
{
	struct world *w = *state;
	char command[128];
	int ended;

	ndp_placement_detach(w->a);
	if (w->dev)
		free_weights(w);
	/* Whatever happened, it ends well: under sanitizers without a leak, too. */
	ended = end_ndpd(w, SIGTERM);
	if (ended)
		print_error("ndpd ended with status 0x%x\n", ended);
	if (ended && system(strcat(strcpy(command, "cat "), w->log)))
		return -1;
	snprintf(command, sizeof(command), "rm -rf '%s'", w->dir);
	if (system(command))
		return -1;
	free(w);
	return ended;
}
