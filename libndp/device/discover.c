/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * discover.c - which nodes there are, and when there are none, why.
 *
 * Nodes come from /sys/class/ndp, which the driver fills; libpci is asked only
 * when there is none, to tell a machine without DIMMs from DIMMs without a
 * driver.  Nothing is opened, so this works without any rights.
 *
 * libpci's default error handler ends the process; ours jumps back instead.
 */
#include "discover.h"
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pci/pci.h>
#include <pwd.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* kmod/ndp_regs.h: the identity of an NDP DIMM. */
#define PCI_VENDOR 0x1b36
#define PCI_DEVICE 0x4e44

#define MODULE "moendp"

const struct ndpi_roots ndpi_system_roots = { .sys = "/sys", .dev = "/dev" };

/* ---- nodes ----------------------------------------------------------- */

/* "ndp0" or "ndp0d1"; @dimm is -1 for a whole domain. */
static bool parse_name(const char *name, unsigned int *domain, int *dimm)
{
	int end = 0;

	*dimm = -1;
	if (sscanf(name, "ndp%u%n", domain, &end) == 1 && end && !name[end])
		return true;
	end = 0;
	return sscanf(name, "ndp%ud%d%n", domain, dimm, &end) == 2 && end && !name[end] &&
	       *dimm >= 0 && *dimm < NDP_MAX_DIMMS;
}

/* The first line of a sysfs attribute, without its newline. */
static void read_line(char *line, size_t size, const char *path)
{
	FILE *f = fopen(path, "re");

	line[0] = '\0';
	if (!f)
		return;
	if (!fgets(line, (int)size, f))
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	fclose(f);
}

static int by_domain_then_dimm(const void *a, const void *b)
{
	const struct ndp_node *l = a, *r = b;
	unsigned int ld, rd;
	int unused;

	parse_name(strrchr(l->path, '/') + 1, &ld, &unused);
	parse_name(strrchr(r->path, '/') + 1, &rd, &unused);
	if (ld != rd)
		return ld < rd ? -1 : 1;
	return (l->dimm > r->dimm) - (l->dimm < r->dimm);
}

static bool is_in(const char *dimm, const char *domain)
{
	size_t n = strlen(domain);

	return !strncmp(dimm, domain, n) && dimm[n] == 'd';
}

/* Every node, sorted; the caller frees. */
static int list_nodes(const struct ndpi_roots *roots, struct ndp_node **nodes)
{
	char path[PATH_MAX];
	struct dirent *e;
	size_t n = 0, room = 0;
	DIR *dir;

	*nodes = NULL;
	snprintf(path, sizeof(path), "%s/class/ndp", roots->sys);
	dir = opendir(path);
	if (!dir)
		return 0;
	while ((e = readdir(dir))) {
		struct ndp_node node = { .dimm = -1 };
		unsigned int domain;

		if (!parse_name(e->d_name, &domain, &node.dimm))
			continue;
		if (snprintf(node.path, sizeof(node.path), "%s/%s", roots->dev, e->d_name) >=
		    (int)sizeof(node.path))
			continue;
		if (node.dimm >= 0)
			node.dimm_mask = 1U << node.dimm;
		snprintf(path, sizeof(path), "%s/class/ndp/ndp%u/domain", roots->sys, domain);
		read_line(node.domain, sizeof(node.domain), path);
		if (n == room) {
			struct ndp_node *more;

			room = room ? 2 * room : 16;
			more = reallocarray(*nodes, room, sizeof(*more));
			if (!more) {
				free(*nodes);
				*nodes = NULL;
				closedir(dir);
				return -ENOMEM;
			}
			*nodes = more;
		}
		(*nodes)[n++] = node;
	}
	closedir(dir);
	if (n)
		qsort(*nodes, n, sizeof(**nodes), by_domain_then_dimm);
	/* A domain is followed by its DIMMs. */
	for (size_t i = 0, whole = n; i < n; i++) {
		if ((*nodes)[i].dimm < 0)
			whole = i;
		else if (whole < n && is_in((*nodes)[i].path, (*nodes)[whole].path))
			(*nodes)[whole].dimm_mask |= (*nodes)[i].dimm_mask;
	}
	return (int)n;
}

/* ---- why there are none ---------------------------------------------- */

struct functions {
	unsigned int count;
	unsigned int bound_elsewhere; /* to another driver than ours */
	unsigned int bound; /* to ours */
	char first_unbound[32]; /* PCI addresses */
	char first_elsewhere[32];
	char other_driver[64];
	char first[32];
};

static __thread jmp_buf *on_pci_error;

static void __attribute__((noreturn)) pci_gives_up(char *msg, ...)
{
	(void)msg;
	longjmp(*on_pci_error, 1);
}

static void pci_is_silent(char *msg, ...)
{
	(void)msg;
}

static bool exists(const char *root, const char *rest)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", root, rest);
	return !access(path, F_OK);
}

static void note_function(const struct ndpi_roots *roots, const struct pci_dev *d,
			  struct functions *f)
{
	char path[PATH_MAX], target[PATH_MAX], address[32];
	const char *driver;
	ssize_t n;

	snprintf(address, sizeof(address), "%04x:%02x:%02x.%u", (unsigned int)d->domain, d->bus,
		 d->dev, d->func);
	if (!f->count++)
		snprintf(f->first, sizeof(f->first), "%s", address);
	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/driver", roots->sys, address);
	n = readlink(path, target, sizeof(target) - 1);
	if (n < 0) {
		if (!f->first_unbound[0])
			snprintf(f->first_unbound, sizeof(f->first_unbound), "%s", address);
		return;
	}
	target[n] = '\0';
	driver = strrchr(target, '/');
	driver = driver ? driver + 1 : target;
	if (!strcmp(driver, MODULE)) {
		f->bound++;
	} else if (!f->bound_elsewhere++) {
		snprintf(f->first_elsewhere, sizeof(f->first_elsewhere), "%s", address);
		snprintf(f->other_driver, sizeof(f->other_driver), "%.63s", driver);
	}
}

/* -errno when the PCI bus cannot be looked at. */
static int find_functions(const struct ndpi_roots *roots, struct functions *f)
{
	struct pci_access *pci;
	char path[PATH_MAX];
	jmp_buf env;

	memset(f, 0, sizeof(*f));
	if (!exists(roots->sys, "bus/pci/devices"))
		return -ENOENT;
	pci = pci_alloc();
	if (!pci)
		return -ENOMEM;
	pci->method = PCI_ACCESS_SYS_BUS_PCI;
	pci->error = pci_gives_up;
	pci->warning = pci_is_silent;
	pci->debug = pci_is_silent;
	on_pci_error = &env;
	if (setjmp(env)) {
		on_pci_error = NULL;
		pci_cleanup(pci);
		return -EIO;
	}
	snprintf(path, sizeof(path), "%s/bus/pci", roots->sys);
	pci_set_param(pci, "sysfs.path", path);
	pci_init(pci);
	pci_scan_bus(pci);
	for (struct pci_dev *d = pci->devices; d; d = d->next) {
		pci_fill_info(d, PCI_FILL_IDENT);
		if (d->vendor_id == PCI_VENDOR && d->device_id == PCI_DEVICE)
			note_function(roots, d, f);
	}
	pci_cleanup(pci);
	on_pci_error = NULL;
	return 0;
}

static void explain_none(const struct ndpi_roots *roots, struct ndp_error *err)
{
	bool module = exists(roots->sys, "module/" MODULE);
	struct functions f;
	int r = find_functions(roots, &f);

	if (r == -ENOENT)
		ndpi_fail(err, -ENODEV,
			  "no NDP DIMM: this machine has no PCI bus (%s/bus/pci/devices is not there); soft: runs without DIMMs",
			  roots->sys);
	else if (r < 0)
		ndpi_fail(err, -ENODEV, "no NDP DIMM: libpci could not read the PCI bus (%s)",
			  strerror(-r));
	else if (!f.count)
		ndpi_fail(err, -ENODEV,
			  "no NDP DIMM: there is no PCI function %04x:%04x on this machine; a virtual machine gets them by -device ndp-dimm, and soft: runs without DIMMs",
			  PCI_VENDOR, PCI_DEVICE);
	else if (!module)
		ndpi_fail(err, -ENODEV,
			  "%u NDP DIMM%s found (the first is PCI function %s), but the module " MODULE
			  " is not loaded: run modprobe " MODULE ", or insmod " MODULE
			  ".ko from the build folder, as root",
			  f.count, f.count == 1 ? "" : "s", f.first);
	else if (f.first_unbound[0])
		ndpi_fail(err, -ENODEV,
			  "PCI function %s is an NDP DIMM that no driver is bound to, although the module " MODULE
			  " is loaded: dmesg says why; try again by echo %s > /sys/bus/pci/drivers/"
			  MODULE "/bind as root",
			  f.first_unbound, f.first_unbound);
	else if (f.bound_elsewhere)
		ndpi_fail(err, -ENODEV,
			  "PCI function %s is an NDP DIMM bound to the driver %s: unbind it there and bind it to "
			  MODULE, f.first_elsewhere, f.other_driver);
	else
		ndpi_fail(err, -ENODEV,
			  "%u NDP DIMM%s bound to " MODULE
			  ", but there is no domain in %s/class/ndp: dmesg says what failed",
			  f.count, f.count == 1 ? " is" : "s are", roots->sys);
}

int ndpi_discover(const struct ndpi_roots *roots, struct ndp_node *nodes, size_t max,
		  struct ndp_error *err)
{
	struct ndp_node *all;
	int n;

	ndpi_error_clear(err);
	n = list_nodes(roots, &all);
	if (n < 0)
		return ndpi_fail(err, n, "no memory to list NDP devices");
	if (!n) {
		explain_none(roots, err);
		if (err)
			err->code = -ENODEV;
		return 0;
	}
	if ((size_t)n > max)
		n = (int)max;
	if (n)
		memcpy(nodes, all, (size_t)n * sizeof(*nodes));
	free(all);
	return n;
}

int ndp_discover(struct ndp_node *nodes, size_t max, struct ndp_error *err)
{
	return ndpi_discover(&ndpi_system_roots, nodes, max, err);
}

/* ---- why a node does not open ---------------------------------------- */

static int explain_permission(const char *path, int code, struct ndp_error *err)
{
	struct passwd pw, *user = NULL;
	struct group gr, *group = NULL;
	char user_room[2048], group_room[2048], uid[16], gid[16];
	const char *owner = uid, *members = gid;
	struct stat st;

	if (stat(path, &st) < 0)
		return ndpi_fail(err, code,
				 "cannot open %s: %s, and a folder on the way may not be searched",
				 path, strerror(-code));
	snprintf(uid, sizeof(uid), "%u", st.st_uid);
	snprintf(gid, sizeof(gid), "%u", st.st_gid);
	if (!getpwuid_r(st.st_uid, &pw, user_room, sizeof(user_room), &user) && user)
		owner = user->pw_name;
	if (!getgrgid_r(st.st_gid, &gr, group_room, sizeof(group_room), &group) && group)
		members = group->gr_name;
	if ((st.st_mode & 0060) == 0060 && st.st_gid)
		return ndpi_fail(err, code,
				 "cannot open %s: permission denied; it belongs to %s:%s with mode %04o: join the group %s (usermod -aG %s USER as root, then log in again)",
				 path, owner, members, st.st_mode & 07777, members, members);
	return ndpi_fail(err, code,
			 "cannot open %s: permission denied; it belongs to %s:%s with mode %04o, which lets only %s in: install the udev rule that gives it to group ndp with mode 0660, or become root",
			 path, owner, members, st.st_mode & 07777, owner);
}

static int explain_missing(const struct ndpi_roots *roots, const char *path, int code,
			   struct ndp_error *err)
{
	const char *name = strrchr(path, '/');
	struct ndp_error why = { 0 };
	struct ndp_node first;
	char in_class[96];
	int n = ndpi_discover(roots, &first, 1, &why);

	snprintf(in_class, sizeof(in_class), "class/ndp/%.64s", name ? name + 1 : path);
	if (n > 0 && exists(roots->sys, in_class))
		return ndpi_fail(err, code,
				 "cannot open %s: there is no such node, although the driver has it: is udev (or devtmpfs) running?",
				 path);
	if (n > 0)
		return ndpi_fail(err, code, "cannot open %s: there is no such node; %s is there",
				 path, first.path);
	return ndpi_fail(err, code, "cannot open %s: there is no such node; %.380s", path,
			 why.message);
}

int ndpi_explain_open(const struct ndpi_roots *roots, const char *path, int code,
		      struct ndp_error *err)
{
	switch (code) {
	case -EACCES:
	case -EPERM:
		return explain_permission(path, code, err);
	case -ENOENT:
		return explain_missing(roots, path, code, err);
	case -ENODEV:
	case -ENXIO:
		return ndpi_fail(err, code, "cannot open %s: its device is gone", path);
	default:
		return ndpi_fail(err, code, "cannot open %s: %s", path, strerror(-code));
	}
}
