// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * doctor_system.c - what ndpctl doctor looks at beside devices: kernel, io_uring, limits,
 * NUMA, OpenCL, ndpd and its configuration.
 */
#include "doctor.h"
#include "../../daemon/config.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <ndp/daemon.h>
#include <ndp/gpu.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { MIN_FILES = 256, MIN_MEMLOCK = 64 << 10, PROBE_GPU_BYTES = 1 << 20 };

/* The oldest kernel that the driver is built and tested for; commands of 128 bytes in
 * io_uring came with 5.19. */
enum { MIN_MAJOR = 6, MIN_MINOR = 1 };

void doctor_kernel(struct doctor *d, const char *release)
{
	unsigned int major = 0, minor = 0;

	if (sscanf(release, "%u.%u", &major, &minor) != 2)
		doctor_say(d, CHECK_NOTE, "kernel", "", "the kernel's release '%s' says no version",
			   release);
	else if (major < MIN_MAJOR || (major == MIN_MAJOR && minor < MIN_MINOR))
		doctor_say(d, CHECK_PROBLEM, "kernel", "boot Linux 6.1 or later", "Linux %s is "
			   "older than the driver can do with", release);
	else
		doctor_say(d, CHECK_OK, "kernel", "", "Linux %s", release);
}

/* A ring is made and closed at once: what is asked for is what libndp uses. */
static void check_io_uring(struct doctor *d)
{
	struct io_uring_params p = { .flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32 };
	char disabled[16];
	long fd;

	file_line(disabled, sizeof(disabled), "%s/sys/kernel/io_uring_disabled", roots.proc);
	fd = syscall(__NR_io_uring_setup, 4, &p);
	if (fd >= 0) {
		close((int)fd);
		doctor_say(d, CHECK_OK, "io_uring", "", "available, with 128-byte entries%s%s",
			   disabled[0] ? ", kernel.io_uring_disabled is " : "", disabled);
		return;
	}
	if (errno == ENOSYS)
		doctor_say(d, CHECK_PROBLEM, "io_uring", "boot a kernel with CONFIG_IO_URING; "
			   "libndp submits queues by it", "this kernel has none");
	else if (errno == EPERM && disabled[0] && strcmp(disabled, "0"))
		doctor_say(d, CHECK_PROBLEM, "io_uring", "sysctl kernel.io_uring_disabled=0 as "
			   "root; with 1 join the group of kernel.io_uring_group", "switched off "
			   "for you: kernel.io_uring_disabled is %s", disabled);
	else if (errno == EPERM)
		doctor_say(d, CHECK_PROBLEM, "io_uring", "allow io_uring_setup in the container's "
			   "seccomp profile", "not permitted, although the kernel has it");
	else if (errno == EINVAL)
		doctor_say(d, CHECK_PROBLEM, "io_uring", "boot Linux 6.1 or later", "without "
			   "128-byte entries");
	else
		doctor_say(d, CHECK_PROBLEM, "io_uring", "raise the limits of memory or open files",
			   "no ring can be made: %s", strerror(errno));
}

static void check_limits(struct doctor *d)
{
	char text[32];
	struct rlimit l;

	getrlimit(RLIMIT_MEMLOCK, &l);
	if (l.rlim_cur != RLIM_INFINITY && l.rlim_cur < MIN_MEMLOCK)
		doctor_say(d, CHECK_NOTE, "memlock", "raise it by ulimit -l or limits.conf(5)",
			   "only %s of memory may be locked", text_bytes(text, sizeof(text),
								 (double)l.rlim_cur));
	else
		doctor_say(d, CHECK_OK, "memlock", "", "%s of memory may be locked",
			   l.rlim_cur == RLIM_INFINITY ? "all" :
			   text_bytes(text, sizeof(text), (double)l.rlim_cur));
	getrlimit(RLIMIT_NOFILE, &l);
	if (l.rlim_cur < MIN_FILES)
		doctor_say(d, CHECK_NOTE, "files", "raise it by ulimit -n or limits.conf(5)",
			   "only %llu files may be open", (unsigned long long)l.rlim_cur);
	else
		doctor_say(d, CHECK_OK, "files", "", "%llu files may be open",
			   (unsigned long long)l.rlim_cur);
}

static void check_numa(struct doctor *d)
{
	char online[64];

	if (!file_line(online, sizeof(online), "%s/devices/system/node/online", roots.sys)) {
		doctor_say(d, CHECK_OK, "numa", "", "the kernel knows no NUMA nodes");
		return;
	}
	if (strcmp(online, "0") && d->numa_unknown)
		doctor_say(d, CHECK_NOTE, "numa", "the firmware should say (ACPI _PXM): threads "
			   "and buffers cannot be put near it", "nodes %s are online, and of a "
			   "DIMM it is not known at which it is", online);
	else
		doctor_say(d, CHECK_OK, "numa", "", "nodes %s are online", online);
}

static void check_gpu(struct doctor *d)
{
	struct ndp_error err = { 0 };
	struct ndp_gpu_info info;
	struct ndp_gpu *gpu;

	if (ndp_gpu_open(&gpu, "opencl", PROBE_GPU_BYTES, &err) < 0) {
		doctor_say(d, CHECK_NOTE, "opencl", "install the GPU's OpenCL driver; without a "
			   "GPU hot experts are computed by DIMMs and CPU", "%s", err.message);
		return;
	}
	ndp_gpu_info(gpu, &info);
	ndp_gpu_close(gpu);
	if (info.is_cpu)
		doctor_say(d, CHECK_NOTE, "opencl", "", "%s: no GPU, OpenCL on this machine's own "
			   "cores",
			   info.name);
	else
		doctor_say(d, CHECK_OK, "opencl", "", "%s", info.name);
}

static void check_config(struct doctor *d)
{
	struct ndp_error err = { 0 };
	struct config *c = malloc(sizeof(*c));
	const bool there = access(roots.config, F_OK) == 0;

	if (!c)
		return;
	if (config_load(c, roots.config, true, &err) < 0)
		doctor_say(d, CHECK_PROBLEM, "config", there ? "correct it, then systemctl reload "
			   "ndpd" :
			   "install the profiles of share/, or name one in the configuration", "%s",
			   err.message);
	else if (!there)
		doctor_say(d, CHECK_NOTE, "config", "", "%s is not there: ndpd takes its defaults",
			   roots.config);
	else
		doctor_say(d, CHECK_OK, "config", "", "%s can be used, host profile %s",
			   roots.config,
			   c->host.name);
	free(c);
}

static bool has_node(const json_t *doc, const char *path)
{
	const json_t *o;
	size_t i;

	json_array_foreach(json_object_get(doc, "devices"), i, o)
		if (!strcmp(json_str(o, "node"), path))
			return true;
	return false;
}

/* It is another user, who may have other rights. */
static void check_daemon_nodes(struct doctor *d, const json_t *doc)
{
	struct ndp_node *nodes;
	struct ndp_error why;
	int n = nodes_find(&nodes, &why);

	for (int i = 0; i < n; i++)
		if (nodes[i].dimm < 0 && !has_node(doc, nodes[i].path))
			doctor_say(d, CHECK_PROBLEM, "ndpd", "put its user into the group of the "
				   "node, and let its unit reach it (DeviceAllow); then restart it",
				   "it has not opened %s: it sees no counters there",
				   nodes[i].path);
	free(nodes);
}

static void check_daemon(struct doctor *d)
{
	struct ndp_error err = { 0 };
	json_t *doc, *clients;
	int r = ask_status(&doc, &err);

	if (r == -ENOENT) {
		doctor_say(d, CHECK_NOTE, "ndpd", "", "%s", err.message);
		return;
	}
	if (r < 0) {
		doctor_say(d, CHECK_PROBLEM, "ndpd", "", "%s", err.message);
		return;
	}
	clients = attached_clients(doc);
	if (json_uint(doc, "version") != NDP_DAEMON_VERSION)
		doctor_say(d, CHECK_PROBLEM, "ndpd", "install ndpd and ndpctl of the same release",
			   "it speaks version %llu, this ndpctl %d",
			   (unsigned long long)json_uint(doc, "version"), NDP_DAEMON_VERSION);
	else if (json_is_true(json_object_get(doc, "dry_run")))
		doctor_say(d, CHECK_NOTE, "ndpd", "start it without --dry-run when you trust it",
			   "runs dry: it decides and moves nothing");
	else
		doctor_say(d, CHECK_OK, "ndpd", "", "answers at %s, up for %.0f s, %zu clients",
			   roots.socket, json_double(doc, "uptime_s", 0),
			   json_array_size(clients));
	json_decref(clients);
	check_daemon_nodes(d, doc);
	json_decref(doc);
}

void doctor_system(struct doctor *d)
{
	struct ndp_error ignored;
	struct utsname u;

	if (uname(&u) == 0)
		doctor_kernel(d, u.release);
	check_io_uring(d);
	check_limits(d);
	check_numa(d);
	check_config(d);
	if (interrupt_check(&ignored) == 0)
		check_daemon(d);
	if (interrupt_check(&ignored) == 0)
		check_gpu(d);
}
