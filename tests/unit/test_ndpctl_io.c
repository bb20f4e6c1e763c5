// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * test_ndpctl_io.c - ndpctl against a sysfs, nodes and an ndpd that are the test's own: a
 * reset that works, fails, or never ends; a lock that another process holds; an ndpd that
 * lies.  ndp_discover() is the test's (--wrap), everything else is the real code.
 */
#include "../../tools/ndp-run/interrupt.h"
#include "../../tools/ndpctl/doctor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <ndp/daemon.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[32];
static bool no_nodes;

int __wrap_ndp_discover(struct ndp_node *nodes, size_t max, struct ndp_error *err);
int __wrap_ndp_discover(struct ndp_node *nodes, size_t max, struct ndp_error *err)
{
	if (no_nodes) {
		err->code = -ENODEV;
		strcpy(err->message, "none, says the test");
		return 0;
	}
	for (int i = 0; i < 3 && (size_t)i < max; i++) {
		nodes[i] = (struct ndp_node){ .dimm = i - 1, .dimm_mask = i ? 1u << (i - 1) : 3 };
		snprintf(nodes[i].path, sizeof(nodes[i].path), i ? "%s/ndp0d%d" : "%s/ndp0", dir,
			 i - 1);
	}
	return 3;
}

static void put(const char *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(const char *text, const char *fmt, ...)
{
	char path[256];
	va_list ap;
	int n;
	FILE *f;

	n = snprintf(path, sizeof(path), "%s/", dir);
	va_start(ap, fmt);
	vsnprintf(path + n, sizeof(path) - (size_t)n, fmt, ap);
	va_end(ap);
	for (char *c = path + n; *c; c++)
		if (*c == '/') {
			*c = '\0';
			mkdir(path, 0755);
			*c = '/';
		}
	unlink(path);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static int setup(void **state)
{
	static char socket[64];

	(void)state;
	strcpy(dir, "/tmp/ndpctl-test-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(socket, sizeof(socket), "%s/socket", dir);
	roots.sys = dir;
	roots.proc = dir;
	roots.socket = socket;
	no_nodes = false;
	put("", "ndp0");
	for (int i = 0; i < 2; i++) {
		put("", "ndp0d%d", i);
		put("ready\n", "class/ndp/ndp0d%d/state", i);
		put("", "class/ndp/ndp0d%d/reset", i);
		put("2\n", "class/ndp/ndp0d%d/generation", i);
	}
	put("300\n", "module/moendp/parameters/timeout_ms");
	return 0;
}

static int teardown(void **state)
{
	char command[64];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

/* ---- in a process of its own -------------------------------------------------- */

struct ran {
	int status;	/* as a shell has it */
	double seconds;
	char out[4096], err[4096];
};

static void slurp(char *to, size_t size, int fd)
{
	ssize_t n = pread(fd, to, size - 1, 0);

	to[n < 0 ? 0 : n] = '\0';
}

/* As main.c does; @interrupt_ms: SIGINT after so long, 0: none. */
static struct ran run(int (*command)(const struct options *o, struct ndp_error *err),
		      const struct options *o, int interrupt_ms)
{
	int out = memfd_create("out", 0), errors = memfd_create("err", 0), status;
	const uint64_t begin = now_ns();
	struct ran r = { 0 };
	pid_t pid = fork();

	if (pid == 0) {
		struct ndp_error err = { 0 };

		dup2(out, 1);
		dup2(errors, 2);
		interrupt_setup(o->json, &err);
		status = command(o, &err);
		if (status >= STATUS_USAGE)
			fprintf(stderr, "%s\n", err.message);
		fflush(stdout);
		_exit(err.code == -EINTR ? interrupt_status() : status);
	}
	if (interrupt_ms) {
		usleep((useconds_t)interrupt_ms * 1000);
		kill(pid, SIGINT);
	}
	waitpid(pid, &status, 0);
	r.seconds = (double)(now_ns() - begin) * 1e-9 - interrupt_ms * 1e-3;
	r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	slurp(r.out, sizeof(r.out), out);
	slurp(r.err, sizeof(r.err), errors);
	close(out);
	close(errors);
	return r;
}

static void says(const char *text, const char *what)
{
	if (!strstr(text, what))
		fail_msg("no \"%s\" in \"%s\"", what, text);
}

static void no_success_words(const struct ran *r)
{
	static const char *const words[] = { "success", "succeeded", "ready", "done", "ok", "OK" };

	assert_string_equal(r->out, "");
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strstr(r->err, words[i]))
			fail_msg("\"%s\" in \"%s\"", words[i], r->err);
}

/* ---- reset ----------------------------------------------------------------------- */

static struct options reset_of(const char *name)
{
	static char path[64];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return (struct options){ .device = path };
}

static void a_dimm_is_reset(void **state)
{
	struct options o = reset_of("ndp0d1");
	char path[64], written[8] = "";
	struct ran r = run(cmd_reset, &o, 0);
	FILE *f;

	(void)state;
	assert_int_equal(r.status, 0);
	says(r.out, "ready");
	snprintf(path, sizeof(path), "%s/class/ndp/ndp0d1/reset", dir);
	f = fopen(path, "r");
	assert_non_null(fgets(written, sizeof(written), f));
	fclose(f);
	assert_string_equal(written, "1");
	/* Not the other one. */
	snprintf(path, sizeof(path), "%s/class/ndp/ndp0d0/reset", dir);
	f = fopen(path, "r");
	assert_null(fgets(written, sizeof(written), f));
	fclose(f);
}

static void a_domain_is_reset(void **state)
{
	struct options o = reset_of("ndp0");
	struct ran r;

	(void)state;
	o.json = true;
	r = run(cmd_reset, &o, 0);
	assert_int_equal(r.status, 0);
	says(r.out, "ndp0d0");
	says(r.out, "ndp0d1");
}

/* The write went well and the DIMM has failed all the same. */
static void a_failed_reset_is_no_success(void **state)
{
	struct options o = reset_of("ndp0d1");
	struct ran r;

	(void)state;
	put("failed\n", "class/ndp/ndp0d1/state");
	r = run(cmd_reset, &o, 0);
	assert_int_equal(r.status, STATUS_FAILED);
	says(r.err, "its state is failed");
	no_success_words(&r);
}

static void a_refused_reset_is_no_success(void **state)
{
	struct options o = reset_of("ndp0d1");
	char path[64];
	struct ran r;

	(void)state;
	put("failed\n", "class/ndp/ndp0d1/state");
	snprintf(path, sizeof(path), "%s/class/ndp/ndp0d1/reset", dir);
	unlink(path);
	r = run(cmd_reset, &o, 0);
	assert_int_equal(r.status, STATUS_FAILED);
	says(r.err, "No such file");
	no_success_words(&r);
}

/* A FIFO without a reader: who opens it to write waits, as a driver may. */
static void make_stuck(void)
{
	char path[64];

	put("resetting\n", "class/ndp/ndp0d1/state");
	snprintf(path, sizeof(path), "%s/class/ndp/ndp0d1/reset", dir);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
}

static bool locked(const char *name)
{
	char path[64];
	int fd, r;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY);
	r = flock(fd, LOCK_EX | LOCK_NB);
	close(fd);
	return r < 0;
}

/* What is stuck comes back; then nobody holds the lock any more. */
static void unstick(void)
{
	char path[64], c;
	int fd;

	snprintf(path, sizeof(path), "%s/class/ndp/ndp0d1/reset", dir);
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	while (read(fd, &c, 1) > 0)
		;
	close(fd);
	for (int i = 0; i < 200 && locked("ndp0"); i++)
		usleep(10000);
	assert_false(locked("ndp0"));
}

static void a_stuck_reset_ends_at_its_deadline(void **state)
{
	struct options o = reset_of("ndp0d1");
	struct ran r;

	(void)state;
	make_stuck();
	r = run(cmd_reset, &o, 0);
	assert_int_equal(r.status, STATUS_FAILED);
	says(r.err, "has not ended within 5300 ms, its state is resetting");
	no_success_words(&r);
	assert_true(r.seconds >= 5.3 && r.seconds < 8);
	/* The driver is still at it. */
	assert_true(locked("ndp0") && locked("ndp0d1") && !locked("ndp0d0"));
	unstick();
}

static void sigint_ends_a_stuck_reset(void **state)
{
	struct options o = reset_of("ndp0d1");
	struct ran r;

	(void)state;
	make_stuck();
	r = run(cmd_reset, &o, 300);
	assert_int_equal(r.status, 130);
	assert_true(r.seconds < 1);
	says(r.err, "interrupted");
	no_success_words(&r);
	assert_true(locked("ndp0"));
	unstick();
}

static pid_t hold(const char *name)
{
	char path[64];
	int ready[2];
	char c;
	pid_t pid;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		int fd = open(path, O_RDONLY);

		if (flock(fd, LOCK_EX) == 0 && write(ready[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void let_go(pid_t pid)
{
	int status;

	/* It was not touched. */
	assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
}

/* The lock of the domain, and that of the DIMM alone. */
static void in_use(void **state)
{
	static const char *const nodes[] = { "ndp0", "ndp0d1" };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct options o = reset_of("ndp0d1");
		pid_t pid = hold(nodes[i]);
		struct ran r = run(cmd_reset, &o, 0);

		assert_int_equal(r.status, STATUS_FAILED);
		says(r.err, "in use");
		says(r.err, "--wait");
		no_success_words(&r);
		let_go(pid);
	}
}

static void sigint_while_waiting(void **state)
{
	struct options o = reset_of("ndp0d1");
	pid_t pid = hold("ndp0");
	struct ran r;

	(void)state;
	o.wait = true;
	r = run(cmd_reset, &o, 300);
	assert_int_equal(r.status, 130);
	assert_true(r.seconds < 1);
	says(r.err, "waiting for the lock of");
	let_go(pid);
}

static void what_cannot_be_reset(void **state)
{
	struct options o = reset_of("ndp7");
	struct ran r = run(cmd_reset, &o, 0);

	(void)state;
	assert_int_equal(r.status, STATUS_FAILED);
	says(r.err, "there is no such device");
	o.device = "soft:dimms=2";
	r = run(cmd_reset, &o, 0);
	assert_int_equal(r.status, STATUS_FAILED);
	says(r.err, "in one process");
	no_nodes = true;
	o.device = "/dev/ndp0";
	r = run(cmd_reset, &o, 0);
	assert_int_equal(r.status, STATUS_FAILED);
	says(r.err, "none, says the test");
}

/* ---- list --------------------------------------------------------------------------- */

static void list_shows_nodes(void **state)
{
	struct options o = { .json = true };
	struct ran r;
	json_t *doc;

	(void)state;
	put("4096\n", "class/ndp/ndp0d0/mem_bytes");
	r = run(cmd_list, &o, 0);
	assert_int_equal(r.status, 0);
	assert_string_equal(r.err, "");
	doc = json_loads(r.out, 0, NULL);
	assert_int_equal(json_array_size(doc), 1);
	assert_int_equal(json_array_size(json_object_get(json_array_get(doc, 0), "dimms")), 2);
	says(r.out, "\"memory_bytes\": 4096");
	says(r.out, "\"memory_bytes\": null");
	json_decref(doc);
	no_nodes = true;
	r = run(cmd_list, &o, 0);
	assert_int_equal(r.status, 0);
	assert_string_equal(r.out, "[]\n");
	assert_string_equal(r.err, "ndpctl: none, says the test\n");
}

/* ---- an ndpd that lies ------------------------------------------------------------ */

enum lie { TRUTH, UNSEALED, LONGER, NOT_JSON, NO_FD, SHORT, OTHER, HANGS_UP, REFUSES, SILENT };

static void answer(int fd, enum lie lie)
{
	const char *text = lie == NOT_JSON ? "{\"a\": nan}" : "{\"version\": 1, \"clients\": []}";
	struct ndp_msg_status m = { { NDP_MSG_STATUS, sizeof(m) }, strlen(text) };
	struct ndp_msg_error no = { { NDP_MSG_ERROR, sizeof(no) }, -EUSERS,
					"too many, says the test" };
	struct iovec iov = { &m, lie == SHORT ? 5 : sizeof(m) };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int document = memfd_create("status", MFD_ALLOW_SEALING);

	if (lie == REFUSES) {
		(void)!send(fd, &no, sizeof(no), 0);
		return;
	}
	m.json_bytes += lie == LONGER ? 4096 : 0;
	m.head.type += lie == OTHER ? 17 : 0;
	(void)!write(document, text, strlen(text));
	if (lie != UNSEALED)
		fcntl(document, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &document, sizeof(int));
	if (lie == NO_FD)
		msg.msg_control = NULL, msg.msg_controllen = 0;
	(void)!sendmsg(fd, &msg, 0);
}

static pid_t start_ndpd(enum lie lie)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	pid_t pid;

	strcpy(address.sun_path, roots.socket);
	unlink(roots.socket);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 5), 0);
	pid = fork();
	if (pid == 0) {
		char request[64];
		int fd = accept(listener, NULL, NULL);

		if (lie != HANGS_UP && read(fd, request, sizeof(request)) == 8 && lie != SILENT)
			answer(fd, lie);
		if (lie == SILENT)
			pause();
		_exit(0);
	}
	close(listener);
	return pid;
}

static void what_ndpd_says(void **state)
{
	static const char *const wanted[] = {
		[TRUTH] = NULL, [UNSEALED] = "sealed", [LONGER] = "sealed", [NOT_JSON] = "JSON",
		[NO_FD] = "status was wanted", [SHORT] = "no message",
		[OTHER] = "status was wanted",
		[HANGS_UP] = "ended the connection", [REFUSES] = "too many, says the test",
	};

	(void)state;
	for (enum lie lie = TRUTH; lie <= REFUSES; lie++) {
		pid_t pid = start_ndpd(lie);
		struct ndp_error err = { 0 };
		json_t *doc;
		int r = ask_status(&doc, &err);

		waitpid(pid, NULL, 0);
		if (lie == TRUTH) {
			assert_int_equal(r, 0);
			assert_int_equal(json_uint(doc, "version"), 1);
			json_decref(doc);
			continue;
		}
		assert_true(r < 0);
		assert_null(doc);
		says(err.message, wanted[lie]);
	}
}

/* A dead one's socket, and none: an empty list, for which there is a reason. */
static void no_ndpd(void **state)
{
	struct options o = { .json = true, .clients = true };
	struct ran r = run(cmd_list, &o, 0);

	(void)state;
	assert_int_equal(r.status, 0);
	assert_string_equal(r.out, "[]\n");
	says(r.err, "no ndpd listens there");
	waitpid(start_ndpd(HANGS_UP), NULL, WNOHANG);
	r = run(cmd_list, &o, 0);	/* ends it */
	r = run(cmd_list, &o, 0);
	assert_int_equal(r.status, 0);
	assert_string_equal(r.out, "[]\n");
	says(r.err, "is gone");
}

static void sigint_while_ndpd_is_silent(void **state)
{
	struct options o = { .json = true, .clients = true };
	pid_t pid = start_ndpd(SILENT);
	struct ran r = run(cmd_list, &o, 300);

	(void)state;
	assert_int_equal(r.status, 130);
	assert_true(r.seconds < 1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* ---- doctor ------------------------------------------------------------------------- */

static bool found(const struct doctor *d, const char *check, const char *verdict, const char *text)
{
	const json_t *c;
	size_t i;

	json_array_foreach(d->checks, i, c)
		if (!strcmp(json_str(c, "check"), check) &&
		    !strcmp(json_str(c, "verdict"), verdict) &&
		    strstr(json_str(c, "found"), text))
			return true;
	return false;
}

static void function(const char *address, const char *driver)
{
	char path[128], target[128];

	put("0x1b36\n", "bus/pci/devices/%s/vendor", address);
	put("0x4e44\n", "bus/pci/devices/%s/device", address);
	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/driver", dir, address);
	snprintf(target, sizeof(target), "../../../bus/pci/drivers/%s", driver);
	if (driver[0])
		assert_int_equal(symlink(target, path), 0);
}

static void doctor_sees_functions(void **state)
{
	struct doctor d = { .checks = json_array() };

	(void)state;
	no_nodes = true;
	doctor_devices(&d);
	assert_true(found(&d, "pci", "problem", "no PCI bus"));
	assert_true(found(&d, "module", "ok", "timeout_ms 300"));
	assert_true(found(&d, "node", "problem", "none, says the test"));
	json_decref(d.checks);

	d = (struct doctor){ .checks = json_array() };
	put("0x8086\n", "bus/pci/devices/0000:00:01.0/vendor");
	put("0x4e44\n", "bus/pci/devices/0000:00:01.0/device");
	doctor_devices(&d);
	assert_true(found(&d, "pci", "problem", "no PCI function"));
	json_decref(d.checks);

	d = (struct doctor){ .checks = json_array() };
	function("0000:00:02.0", "moendp");
	function("0000:00:03.0", "");
	function("0000:00:04.0", "vfio-pci");
	doctor_devices(&d);
	assert_true(found(&d, "pci", "problem", "the first is 0000:00:03.0"));
	assert_true(found(&d, "pci", "problem", "0000:00:04.0 of an NDP DIMM is bound to the "
			  "driver vfio-pci"));
	assert_false(found(&d, "pci", "ok", ""));
	json_decref(d.checks);
}

/* An ndpd that answers, and has opened no node. */
static void doctor_sees_what_ndpd_has_not_opened(void **state)
{
	pid_t pid = start_ndpd(TRUTH);
	struct doctor d = { .checks = json_array() };
	static char config[64];

	(void)state;
	snprintf(config, sizeof(config), "%s/ndpd.conf", dir);
	roots.config = config;
	put("[daemon]\npoll_ms = 0\n", "ndpd.conf");
	doctor_system(&d);
	waitpid(pid, NULL, 0);
	assert_true(found(&d, "ndpd", "ok", "0 clients"));
	assert_true(found(&d, "ndpd", "problem", "ndp0: it sees no counters"));
	assert_true(found(&d, "config", "problem", "ndpd.conf: line 2"));
	json_decref(d.checks);
}

/* The nodes here are plain files: they open, and are no devices. */
static void doctor_sees_nodes(void **state)
{
	struct doctor d = { .checks = json_array() };

	(void)state;
	doctor_devices(&d);
	assert_true(found(&d, "node", "problem", "ndp0"));
	json_decref(d.checks);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_dimm_is_reset),
		TEST(a_domain_is_reset),
		TEST(a_failed_reset_is_no_success),
		TEST(a_refused_reset_is_no_success),
		TEST(a_stuck_reset_ends_at_its_deadline),
		TEST(sigint_ends_a_stuck_reset),
		TEST(in_use),
		TEST(sigint_while_waiting),
		TEST(what_cannot_be_reset),
		TEST(list_shows_nodes),
		TEST(what_ndpd_says),
		TEST(no_ndpd),
		TEST(sigint_while_ndpd_is_silent),
		TEST(doctor_sees_functions),
		TEST(doctor_sees_what_ndpd_has_not_opened),
		TEST(doctor_sees_nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
