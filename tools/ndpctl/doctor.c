// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * doctor.c - ndpctl doctor: looks for what is wrong with devices, driver, rights and
 * daemon, and says what to do.  This file: the report, and what has to do with DIMMs.
 *
 * It only looks: nothing is loaded, bound, created or reset.
 */
#include "doctor.h"
#include "../ndp-run/error.h"
#include "../ndp-run/interrupt.h"

#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* kmod/ndp_regs.h: the identity of an NDP DIMM. */
#define PCI_VENDOR "0x1b36"
#define PCI_DEVICE "0x4e44"

static const char *const verdict_name[CHECK_VERDICTS] = {
	[CHECK_OK] = "ok",
	[CHECK_NOTE] = "note",
	[CHECK_PROBLEM] = "problem",
};

void doctor_say(struct doctor *d, enum verdict v, const char *check, const char *advice,
		const char *fmt, ...)
{
	char found[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(found, sizeof(found), fmt, ap);
	va_end(ap);
	d->count[v]++;
	json_array_append_new(d->checks, json_pack(
		"{s:s, s:s, s:o, s:o}", "check", check, "verdict", verdict_name[v], "found",
		json_text(found), "advice", advice[0] ? json_text(advice) : json_null()));
}

/* ---- PCI functions and the driver ------------------------------------------------ */

struct functions {
	uint32_t all, bound, unbound, elsewhere;
	char first_unbound[64], first_elsewhere[64], other[64];
};

static void count_function(struct functions *f, const char *address)
{
	char line[32], path[PATH_MAX], target[PATH_MAX];
	const char *driver;
	ssize_t n;

	if (!file_line(line, sizeof(line), "%s/bus/pci/devices/%s/vendor", roots.sys, address) ||
	    strcmp(line, PCI_VENDOR) ||
	    !file_line(line, sizeof(line), "%s/bus/pci/devices/%s/device", roots.sys, address) ||
	    strcmp(line, PCI_DEVICE))
		return;
	f->all++;
	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/driver", roots.sys, address);
	n = readlink(path, target, sizeof(target) - 1);
	target[n < 0 ? 0 : n] = '\0';
	driver = strrchr(target, '/');
	driver = driver ? driver + 1 : target;
	if (n < 0) {
		if (!f->unbound++)
			snprintf(f->first_unbound, sizeof(f->first_unbound), "%.63s", address);
	} else if (!strcmp(driver, "moendp")) {
		f->bound++;
	} else if (!f->elsewhere++) {
		snprintf(f->first_elsewhere, sizeof(f->first_elsewhere), "%.63s", address);
		snprintf(f->other, sizeof(f->other), "%.63s", driver);
	}
}

static void check_functions(struct doctor *d, bool module)
{
	struct functions f = { 0 };
	char path[PATH_MAX], advice[256];
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/bus/pci/devices", roots.sys);
	dir = opendir(path);
	if (!dir) {
		doctor_say(d, CHECK_PROBLEM, "pci", "use a machine with NDP DIMMs, or the devices "
			   "soft:... that need none", "this machine has no PCI bus (%s is not "
			   "there)",
			   path);
		return;
	}
	while ((e = readdir(dir)))
		if (e->d_name[0] != '.')
			count_function(&f, e->d_name);
	closedir(dir);
	if (!f.all) {
		doctor_say(d, CHECK_PROBLEM, "pci", "plug one in; a virtual machine gets one by "
			   "-device ndp-dimm; the devices soft:... need none",
			   "there is no PCI function of an NDP DIMM (1b36:4e44)");
		return;
	}
	if (f.unbound && module) {
		snprintf(advice, sizeof(advice), "see dmesg; try again by echo %s > "
			 "/sys/bus/pci/drivers/moendp/bind as root", f.first_unbound);
		doctor_say(d, CHECK_PROBLEM, "pci", advice, "%u of %u PCI functions of NDP DIMMs "
			   "have no driver, the first is %s", f.unbound, f.all, f.first_unbound);
	}
	if (f.elsewhere)
		doctor_say(d, CHECK_PROBLEM, "pci", "unbind it there, and bind it to moendp",
			   "the PCI function %s of an NDP DIMM is bound to the driver %s",
			   f.first_elsewhere, f.other);
	if (f.bound == f.all || (!module && !f.elsewhere))
		doctor_say(d, CHECK_OK, "pci", "", "%u PCI function%s of NDP DIMMs, %u bound to "
			   "moendp",
			   f.all, f.all == 1 ? "" : "s", f.bound);
}

static bool check_module(struct doctor *d)
{
	char path[PATH_MAX], version[64], timeout[32];

	snprintf(path, sizeof(path), "%s/module/moendp", roots.sys);
	if (access(path, F_OK) < 0) {
		doctor_say(d, CHECK_PROBLEM, "module", "modprobe moendp as root (the package "
			   "moendp-dkms builds it)", "the module moendp is not loaded");
		return false;
	}
	if (!file_line(version, sizeof(version), "%s/version", path) &&
	    !file_line(version, sizeof(version), "%s/srcversion", path))
		strcpy(version, "without a version");
	file_line(timeout, sizeof(timeout), "%s/parameters/timeout_ms", path);
	doctor_say(d, CHECK_OK, "module", "", "moendp is loaded, %s, timeout_ms %s", version,
		   timeout[0] ? timeout : "unknown");
	return true;
}

/* ---- nodes and rights --------------------------------------------------------------- */

static void check_group(struct doctor *d)
{
	const struct group *group = getgrnam("ndp");
	gid_t mine[1024];
	int n = getgroups(1024, mine);
	bool member = false;

	if (!group) {
		doctor_say(d, CHECK_NOTE, "group", "install ndp-tools, or run systemd-sysusers "
			   "with its ndpd.conf", "there is no group ndp, to which device nodes "
		"are given");
		return;
	}
	for (int i = 0; i < n; i++)
		member |= mine[i] == group->gr_gid;
	member |= getegid() == group->gr_gid;
	if (geteuid() == 0)
		doctor_say(d, CHECK_OK, "group", "", "there is the group ndp, and you are root");
	else if (member)
		doctor_say(d, CHECK_OK, "group", "", "you are in the group ndp");
	else
		doctor_say(d, CHECK_NOTE, "group", "usermod -aG ndp USER as root, then log in "
			   "again",
			   "you are not in the group ndp");
}

static void check_dimms(struct doctor *d, const char *path, struct ndp_device *dev)
{
	struct ndp_device_info info;
	uint32_t ready = 0, peers = UINT32_MAX;
	char missing[128], advice[128];
	uint64_t quota;

	ndp_device_info(dev, &info);
	for (uint32_t m = info.dimm_mask; m; m &= m - 1) {
		const uint32_t k = (uint32_t)__builtin_ctz(m);
		struct ndp_dimm_info i;

		if (ndp_dimm_info(dev, k, &i) < 0)
			continue;
		snprintf(advice, sizeof(advice), "ndpctl reset %sd%u as root, or replace it; see "
			 "dmesg",
			 path, k);
		if (i.state != NDP_DIMM_READY)
			doctor_say(d, CHECK_PROBLEM, "dimm", advice, "DIMM %u of %s is %s", k, path,
				   dimm_state_name(i.state));
		else
			ready |= 1u << k;
		if (i.resets)
			doctor_say(d, CHECK_NOTE, "dimm", "see dmesg: it may be about to fail",
				   "DIMM %u of %s was reset %u times", k, path, i.resets);
		if (i.compute.errors + i.link.errors)
			doctor_say(d, CHECK_NOTE, "dimm", "", "DIMM %u of %s has refused or "
				   "failed %llu commands", k, path,
				   (unsigned long long)(i.compute.errors + i.link.errors));
		if (i.state == NDP_DIMM_READY)
			peers &= i.link_peers | 1u << k;
		d->numa_unknown |= i.numa_node < 0;
	}
	doctor_say(d, ready ? CHECK_OK : CHECK_PROBLEM, "dimm", "", "%s: %d of %d DIMMs are ready",
		   path, __builtin_popcount(ready), __builtin_popcount(info.dimm_mask));
	if (ready & ~peers)
		doctor_say(d, CHECK_PROBLEM, "link", "\"ndpctl topology\" shows which; check "
			   "cables and bridges: experts cannot move where there is no link", "%s: "
			   "not every DIMM reaches DIMMs %s over DIMM-Link", path,
			   text_mask(missing, sizeof(missing), ready & ~peers));
	else if (__builtin_popcount(ready) > 1)
		doctor_say(d, CHECK_OK, "link", "", "%s: every DIMM reaches every other", path);
	quota = info.quota_bytes;
	if (quota && info.used_bytes >= quota - quota / 20)
		doctor_say(d, CHECK_PROBLEM, "quota", "end programs that hold DIMM memory, or "
			   "have root raise quota_bytes in /sys/class/ndp/ndpN", "%s: %llu of the "
			   "%llu bytes that you may have are used", path,
			   (unsigned long long)info.used_bytes,
			   (unsigned long long)quota);
	else
		doctor_say(d, CHECK_OK, "quota", "", quota ? "%s: %llu of %llu bytes used" :
			   "%s: no limit, %llu bytes used", path,
			   (unsigned long long)info.used_bytes,
			   (unsigned long long)quota);
}

static void check_node(struct doctor *d, const char *path)
{
	struct ndp_device *dev;
	struct ndp_error err;
	char owner[128];
	struct stat st;

	if (!file_owner(owner, sizeof(owner), path))
		strcpy(owner, "nobody");
	if (ndp_open(&dev, path, &err) < 0) {
		doctor_say(d, CHECK_PROBLEM, "node", "", "%s", err.message);
		return;
	}
	if (stat(path, &st) == 0 && st.st_mode & 0006)
		doctor_say(d, CHECK_NOTE, "node", "install 60-moendp.rules: root:ndp 0660",
			   "%s can be opened by everybody: %s", path, owner);
	else
		doctor_say(d, CHECK_OK, "node", "", "%s opens, %s", path, owner);
	check_dimms(d, path, dev);
	ndp_close(dev);
}

void doctor_devices(struct doctor *d)
{
	const bool module = check_module(d);
	struct ndp_node *nodes;
	struct ndp_error why;
	int n;

	check_functions(d, module);
	check_group(d);
	n = nodes_find(&nodes, &why);
	if (n <= 0 && module)
		doctor_say(d, CHECK_PROBLEM, "node", "", "%s", why.message);
	for (int i = 0; i < n; i++)
		if (nodes[i].dimm < 0)
			check_node(d, nodes[i].path);
	free(nodes);
}

/* ---- the report ----------------------------------------------------------------------- */

static void print_line(const json_t *c)
{
	const char *advice = json_str(c, "advice");

	printf("%-8s %-9s %s%s%s\n", json_str(c, "verdict"), json_str(c, "check"),
	       json_str(c, "found"), advice[0] ? ": " : "", advice);
}

int cmd_doctor(const struct options *o, struct ndp_error *err)
{
	struct doctor d = { .checks = json_array() };
	const json_t *c;
	bool problem;
	size_t i;

	if (!d.checks)
		return fail(err, -ENOMEM, "out of memory"), STATUS_FAILED;
	doctor_devices(&d);
	if (interrupt_check(err) == 0)
		doctor_system(&d);
	if (interrupt_check(err) < 0) {
		json_decref(d.checks);
		return STATUS_FAILED;
	}
	problem = d.count[CHECK_PROBLEM];
	interrupt_mute();
	if (o->json) {
		json_t *doc = json_pack("{s:i, s:i, s:o}", "problems",
					(int)d.count[CHECK_PROBLEM], "notes",
					(int)d.count[CHECK_NOTE], "checks", d.checks);

		if (out_json(stdout, doc, err) < 0)
			return STATUS_FAILED;
		return problem ? STATUS_PROBLEM : STATUS_OK;
	}
	json_array_foreach(d.checks, i, c)
		print_line(c);
	json_decref(d.checks);
	return problem ? STATUS_PROBLEM : STATUS_OK;
}
