// SPDX-License-Identifier: GPL-2.0-or-later
/* ndpd_run.c - see ndpd_run.h. */
#include "ndpd_run.h"
#include "bench.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the daemon -------------------------------------------------------------------- */

void ndpd_prepare(struct ndpd_run *n, const char *config)
{
	char path[128];
	ssize_t bytes;
	FILE *f;

	memset(n, 0, sizeof(*n));
	strcpy(n->dir, "/tmp/ndpd-bench-XXXXXX");
	if (!mkdtemp(n->dir))
		die("%s: %s", n->dir, strerror(errno));
	snprintf(n->socket, sizeof(n->socket), "%s/socket", n->dir);
	snprintf(n->recording, sizeof(n->recording), "%s/recording", n->dir);
	snprintf(n->log, sizeof(n->log), "%s/log", n->dir);
	snprintf(path, sizeof(path), "%s/ndpd.conf", n->dir);
	f = fopen(path, "w");
	if (!f || fputs(config, f) < 0 || fclose(f) != 0)
		die("%s: cannot be written", path);
	setenv("NDP_SHARE", "share", 0);
	/* build/bench/NAME: ndpd is one folder up. */
	bytes = readlink("/proc/self/exe", n->program, sizeof(n->program) - 32);
	if (bytes < 0)
		die("/proc/self/exe: %s", strerror(errno));
	strcpy(strrchr(n->program, '/'), "/../ndpd");
}

static bool listens(const struct ndpd_run *n)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	int r;

	strcpy(address.sun_path, n->socket);
	r = connect(fd, (struct sockaddr *)&address, sizeof(address));
	close(fd);
	return r == 0;
}

void ndpd_start(struct ndpd_run *n)
{
	char config[128];

	snprintf(config, sizeof(config), "%s/ndpd.conf", n->dir);
	n->pid = fork();
	if (n->pid == 0) {
		const int log = open(n->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

		dup2(log, 1);
		dup2(log, 2);
		execl(n->program, "ndpd", "--config", config, "--socket", n->socket,
		      n->record ? "--record" : NULL, n->recording, (char *)NULL);
		_exit(127);
	}
	if (n->pid < 0)
		die("fork: %s", strerror(errno));
	for (int i = 0; i < 2000 && !listens(n); i++)
		usleep(5000);
	if (!listens(n))
		die("%s does not listen; see %s", n->program, n->log);
}

int ndpd_stop(struct ndpd_run *n, int signal)
{
	int status = -1;

	kill(n->pid, signal);
	waitpid(n->pid, &status, 0);
	n->pid = 0;
	return status;
}

void ndpd_clean(struct ndpd_run *n)
{
	char command[128];

	if (n->pid > 0)
		ndpd_stop(n, SIGKILL);
	snprintf(command, sizeof(command), "rm -rf '%s'", n->dir);
	if (system(command))
		die("%s cannot be removed", n->dir);
}

uint64_t ndpd_cpu_ns(const struct ndpd_run *n)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(n->pid, &clock) || clock_gettime(clock, &t) < 0)
		die("no CPU clock of ndpd");
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void holds(const struct ndpd_run *n, uint32_t *fds, uint32_t *maps)
{
	char path[64], line[512];
	DIR *d;
	FILE *f;

	*fds = *maps = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)n->pid);
	d = opendir(path);
	while (d && readdir(d))
		++*fds;
	if (d)
		closedir(d);
	snprintf(path, sizeof(path), "/proc/%d/maps", (int)n->pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		*maps += strstr(line, "memfd:") != NULL;
	if (f)
		fclose(f);
}

void ndpd_holds(const struct ndpd_run *n, uint32_t *fds, uint32_t *maps)
{
	holds(n, fds, maps);
	for (int same = 0; same < 5;) {
		uint32_t f, m;

		usleep(50000);
		holds(n, &f, &m);
		same = f == *fds && m == *maps ? same + 1 : 0;
		*fds = f;
		*maps = m;
	}
}

/* ---- a model -------------------------------------------------------------------------- */

/*
 * Gates and ups are 0 but for one column, so that every neuron's g and u are powers of
 * two and h is one of few numbers of about the same size; downs are signs.  All partial
 * sums then fit FP32 exactly, in whatever order they are added.
 */
static void fill(struct bench_model *m, struct ndp_weights *w, uint32_t seed)
{
	const struct ndp_expert_shape *s = &m->shape;
	ndp_bf16 *in = calloc((size_t)s->neurons * s->h_in, sizeof(*in));
	ndp_bf16 *down = calloc((size_t)s->h_out * s->neurons, sizeof(*down));
	uint64_t state = seed + 1;

	for (uint32_t n = 0; n < s->neurons; n++)
		in[(size_t)n * s->h_in + n % s->h_in] = ndp_bf16_from_f32(1);
	for (size_t i = 0; i < (size_t)s->h_out * s->neurons; i++)
		down[i] = ndp_bf16_from_f32(random64(&state) & 1 ? 1 : -1);
	if (ndp_expert_load(w, in, in, s->h_in, down, s->neurons) < 0 ||
	    ndp_weights_seal(w) < 0)
		die("weights cannot be written");
	free(in);
	free(down);
}

void bench_model_load(struct bench_model *m, const char *device, uint32_t layers, uint32_t experts,
		      uint32_t hidden, uint32_t neurons, uint32_t first)
{
	struct ndp_device_info info;
	struct ndp_error err;

	*m = (struct bench_model){ .shape = { hidden, hidden, neurons }, .layers = layers,
				   .experts = experts };
	m->weights = calloc((size_t)layers * experts, sizeof(*m->weights));
	if (ndp_open(&m->dev, device, &err) < 0)
		die("%s", err.message);
	ndp_device_info(m->dev, &info);
	m->dimms = (uint32_t)__builtin_popcount(info.dimm_mask);
	for (uint32_t i = 0; i < layers * experts; i++) {
		struct ndp_placement p;

		ndp_placement_local(&p, ndp_expert_blocks(&m->shape),
				    (first + i % experts) % m->dimms);
		if (ndp_expert_create(&m->weights[i], m->dev, &m->shape, &p, 0,
				      (uint64_t)(i / experts) << 32 | i % experts, &err) < 0)
			die("%s", err.message);
		fill(m, m->weights[i], i);
	}
}

void bench_model_free(struct bench_model *m)
{
	for (uint32_t i = 0; i < m->layers * m->experts; i++)
		ndp_weights_free(m->weights[i]);
	free(m->weights);
	ndp_close(m->dev);
}

uint64_t bench_model_compute(const struct bench_model *m, uint32_t layer)
{
	const size_t hidden = m->shape.h_in, ldx = (2 * hidden + 63) / 64 * 64, ldy = 2 * ldx;
	ndp_bf16 *x = calloc(ldx / 2, sizeof(*x));
	float *y = calloc(hidden, sizeof(*y));
	struct ndp_io *in, *out;
	uint64_t hash = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < hidden; i++)
		x[i] = ndp_bf16_from_f32(i % 3 == 0 ? 1 : 2);
	if (ndp_io_create(&in, m->dev, 0, ldx, NULL) < 0 ||
	    ndp_io_create(&out, m->dev, 0, ldy, NULL) < 0 ||
	    ndp_io_write(in, UINT32_MAX >> (32 - m->dimms), 0, x, ldx) < 0)
		die("activations cannot be made");
	for (uint32_t e = 0; e < m->experts; e++) {
		const struct ndp_cmd c = {
			.op = NDP_OP_FFN_EXPERT, .weights = m->weights[layer * m->experts + e],
			.x = in, .y = out, .x_mask = UINT32_MAX >> (32 - m->dimms), .tokens = 1,
			.ldx = ldx, .ldy = ldy,
		};
		struct ndp_result res;

		if (ndp_run(m->dev, &c, &res) < 0 || res.res < 0 ||
		    ndp_io_reduce(out, res.dimm_mask, 0, ldy, y, hidden, 1, (uint32_t)hidden) < 0)
			die("an expert cannot be computed");
		for (size_t i = 0; i < hidden; i++) {
			uint32_t bits;

			memcpy(&bits, &y[i], sizeof(bits));
			hash = (hash ^ bits) * 0x100000001b3ull; /* FNV-1a, by words */
		}
	}
	ndp_io_free(in);
	ndp_io_free(out);
	free(x);
	free(y);
	return hash;
}

uint64_t bench_model_free_bytes(const struct bench_model *m)
{
	uint64_t bytes = 0;

	for (uint32_t d = 0; d < m->dimms; d++) {
		struct ndp_dimm_info info;

		ndp_dimm_info(m->dev, d, &info);
		bytes += info.free_bytes;
	}
	return bytes;
}
