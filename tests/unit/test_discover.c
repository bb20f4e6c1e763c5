/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * test_discover.c - machines built of directories: which nodes are found, and
 * what is said when there are none or they do not open (case C12).
 */
#include "device_ref.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../libndp/device/discover.h"

/* ---- a machine ------------------------------------------------------- */

static char top[32], sys_root[48], dev_root[48];
static struct ndpi_roots roots = { sys_root, dev_root };

static const char *below_top(const char *path)
{
	static char full[512];

	snprintf(full, sizeof(full), "%s/%s", top, path);
	return full;
}

static void make_dir(const char *path)
{
	char full[512];

	snprintf(full, sizeof(full), "%s", below_top(path));
	for (char *p = full + strlen(top) + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(full, 0755);
		*p = '/';
	}
	mkdir(full, 0755);
}

static void make_file(const char *dir, const char *name, const char *text)
{
	char path[256];
	FILE *f;

	make_dir(dir);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(below_top(path), "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static int new_machine(void **state)
{
	UNUSED_STATE;
	strcpy(top, "/tmp/ndp-test-XXXXXX");
	assert_non_null(mkdtemp(top));
	chmod(top, 0755);
	snprintf(sys_root, sizeof(sys_root), "%s/sys", top);
	snprintf(dev_root, sizeof(dev_root), "%s/dev", top);
	make_dir("sys");
	make_dir("dev");
	return 0;
}

static int end_machine(void **state)
{
	UNUSED_STATE;
	return nftw(top, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void add_function(const char *address, const char *vendor, const char *device,
			 const char *driver)
{
	char dir[128], link[256], target[128];

	snprintf(dir, sizeof(dir), "sys/bus/pci/devices/%s", address);
	make_file(dir, "vendor", vendor);
	make_file(dir, "device", device);
	make_file(dir, "class", "0x120000\n");
	if (!driver)
		return;
	snprintf(target, sizeof(target), "../../../../bus/pci/drivers/%s", driver);
	snprintf(link, sizeof(link), "%s/driver", dir);
	assert_int_equal(symlink(target, below_top(link)), 0);
}

static void add_domain(unsigned int n, const char *uuid, uint32_t dimms)
{
	char dir[64];

	snprintf(dir, sizeof(dir), "sys/class/ndp/ndp%u", n);
	make_file(dir, "domain", uuid);
	for (uint32_t d = 0; d < 32; d++) {
		if (!(dimms & 1U << d))
			continue;
		snprintf(dir, sizeof(dir), "sys/class/ndp/ndp%ud%u", n, d);
		make_dir(dir);
	}
}

static void finds_nothing_because(const char *a, const char *b)
{
	struct ndp_node node;
	struct ndp_error err;

	assert_int_equal(ndpi_discover(&roots, &node, 1, &err), 0);
	assert_int_equal(err.code, -ENODEV);
	if (!strstr(err.message, a) || (b && !strstr(err.message, b)))
		fail_msg("wanted \"%s\" and \"%s\": %s", a, b ? b : "", err.message);
	assert_null(strchr(err.message, '\n'));
	assert_int_equal(ndpi_discover(&roots, &node, 1, NULL), 0);
}

/* ---- nothing found --------------------------------------------------- */

static void no_pci_bus(void **state)
{
	UNUSED_STATE;
	finds_nothing_because("no PCI bus", "soft:");
}

static void no_ndp_function(void **state)
{
	UNUSED_STATE;
	make_dir("sys/bus/pci/devices");
	finds_nothing_because("no PCI function 1b36:4e44", "-device ndp-dimm");
	add_function("0000:00:01.0", "0x8086\n", "0x29c0\n", "agpgart");
	add_function("0000:00:02.0", "0x1b36\n", "0x0010\n", "nvme");
	finds_nothing_because("no PCI function 1b36:4e44", NULL);
}

static void module_absent(void **state)
{
	UNUSED_STATE;
	add_function("0000:01:00.0", "0x1b36\n", "0x4e44\n", NULL);
	finds_nothing_because("1 NDP DIMM found (the first is PCI function 0000:01:00.0)",
			      "modprobe moendp");
	add_function("0000:02:00.0", "0x1b36\n", "0x4e44\n", NULL);
	finds_nothing_because("2 NDP DIMMs found", "insmod moendp.ko");
}

static void function_not_bound(void **state)
{
	UNUSED_STATE;
	make_dir("sys/module/moendp");
	add_function("0000:01:00.0", "0x1b36\n", "0x4e44\n", "moendp");
	add_function("0000:02:00.0", "0x1b36\n", "0x4e44\n", NULL);
	finds_nothing_because("0000:02:00.0", "/sys/bus/pci/drivers/moendp/bind");
}

static void function_bound_to_another_driver(void **state)
{
	UNUSED_STATE;
	make_dir("sys/module/moendp");
	add_function("000a:0b:00.1", "0x1b36\n", "0x4e44\n", "vfio-pci");
	finds_nothing_because("000a:0b:00.1", "bound to the driver vfio-pci");
}

static void bound_and_yet_no_domain(void **state)
{
	UNUSED_STATE;
	make_dir("sys/module/moendp");
	add_function("0000:01:00.0", "0x1b36\n", "0x4e44\n", "moendp");
	finds_nothing_because("1 NDP DIMM is bound to moendp", "dmesg");
}

/* libpci calls its error handler, which must not end the process. */
static void a_function_that_cannot_be_read(void **state)
{
	UNUSED_STATE;
	make_dir("sys/bus/pci/devices/0000:01:00.0");
	finds_nothing_because("libpci could not read", NULL);
}

/* ---- found ----------------------------------------------------------- */

static void nodes_come_sorted_a_domain_before_its_dimms(void **state)
{
	struct ndp_node n[16];
	char want[64];

	UNUSED_STATE;
	add_domain(10, "ffffffff-0000-0000-0000-000000000000\n", 1);
	add_domain(2, "00000000-1111-2222-3333-444444444444\n", 0x80000005);
	make_dir("sys/class/ndp/ndp");
	make_dir("sys/class/ndp/ndp1x");
	make_dir("sys/class/ndp/ndp2d32");
	assert_int_equal(ndpi_discover(&roots, n, 16, NULL), 6);
	snprintf(want, sizeof(want), "%s/ndp2", dev_root);
	assert_string_equal(n[0].path, want);
	assert_string_equal(n[0].domain, "00000000-1111-2222-3333-444444444444");
	assert_int_equal(n[0].dimm, -1);
	assert_int_equal(n[0].dimm_mask, 0x80000005);
	snprintf(want, sizeof(want), "%s/ndp2d31", dev_root);
	assert_string_equal(n[3].path, want);
	assert_string_equal(n[3].domain, n[0].domain);
	assert_int_equal(n[3].dimm, 31);
	assert_int_equal(n[3].dimm_mask, 0x80000000);
	assert_int_equal(n[4].dimm_mask, 1);
	assert_int_equal(n[5].dimm, 0);
	assert_int_equal(ndpi_discover(&roots, n, 2, NULL), 2);
	assert_int_equal(ndpi_discover(&roots, NULL, 0, NULL), 0);
}

/* ---- nodes that do not open ------------------------------------------ */

static void says(int code, const char *path, int want, const char *a, const char *b)
{
	struct ndp_error err;

	assert_int_equal(ndpi_explain_open(&roots, path, code, &err), want);
	assert_int_equal(err.code, want);
	if (!strstr(err.message, path) || !strstr(err.message, a) || (b && !strstr(err.message, b)))
		fail_msg("wanted \"%s\" and \"%s\": %s", a, b ? b : "", err.message);
}

static void a_missing_node_is_explained(void **state)
{
	char path[64];

	UNUSED_STATE;
	snprintf(path, sizeof(path), "%s/ndp0", dev_root);
	make_dir("sys/bus/pci/devices");
	says(-ENOENT, path, -ENOENT, "no such node", "no PCI function");
	add_domain(0, "00000000-1111-2222-3333-444444444444\n", 1);
	says(-ENOENT, path, -ENOENT, "although the driver has it", "udev");
	snprintf(path, sizeof(path), "%s/ndp7", dev_root);
	says(-ENOENT, path, -ENOENT, "no such node", "/ndp0 is there");
	says(-ENODEV, path, -ENODEV, "gone", NULL);
	says(-EMFILE, path, -EMFILE, "Too many open files", NULL);
}

static void no_permission_names_owner_mode_and_group(void **state)
{
	struct group *group = getgrgid(1);
	char want[64], join[64];
	const char *path;
	int status;
	pid_t child;

	UNUSED_STATE;
	if (geteuid() || !group)
		skip(); /* only root can give a file away and become another */
	make_file("dev", "ndp0", "");
	path = below_top("dev/ndp0");
	assert_int_equal(chown(path, 0, 1), 0);
	assert_int_equal(chmod(path, 0660), 0);
	snprintf(want, sizeof(want), "root:%s with mode 0660", group->gr_name);
	snprintf(join, sizeof(join), "join the group %s", group->gr_name);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		struct ndp_device *dev;
		struct ndp_error err;
		int bad = setgroups(0, NULL) || setgid(65534) || setuid(65534);

		bad |= ndp_open(&dev, path, &err) != -EACCES || err.code != -EACCES || dev;
		bad |= !strstr(err.message, path) || !strstr(err.message, want) ||
		       !strstr(err.message, join);
		if (bad)
			fprintf(stderr, "%s\n", err.message);
		_exit(bad);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(chmod(path, 0600), 0);
	says(-EACCES, path, -EACCES, "only root in", "udev rule");
}

static void a_file_that_is_no_device_is_refused(void **state)
{
	struct ndp_device *dev;
	struct ndp_error err;

	UNUSED_STATE;
	make_file("dev", "ndp0", "");
	assert_int_equal(ndp_open(&dev, below_top("dev/ndp0"), &err), -ENOTTY);
	assert_non_null(strstr(err.message, "not a device of the moendp driver"));
	assert_int_equal(ndp_open(&dev, "/dev/null", &err), -ENOTTY);
	assert_int_equal(ndp_open(&dev, below_top("dev"), &err), -EISDIR);
	assert_int_equal(
		ndp_open(&dev, "/dev/a-name-that-is-much-too-long-for-the-path-of-a-device-of-ours",
			 &err),
		-ENAMETOOLONG);
	assert_null(dev);
}

int main(void)
{
#define MACHINE(test) cmocka_unit_test_setup_teardown(test, new_machine, end_machine)
	const struct CMUnitTest tests[] = {
		MACHINE(no_pci_bus),
		MACHINE(no_ndp_function),
		MACHINE(module_absent),
		MACHINE(function_not_bound),
		MACHINE(function_bound_to_another_driver),
		MACHINE(bound_and_yet_no_domain),
		MACHINE(a_function_that_cannot_be_read),
		MACHINE(nodes_come_sorted_a_domain_before_its_dimms),
		MACHINE(a_missing_node_is_explained),
		MACHINE(no_permission_names_owner_mode_and_group),
		MACHINE(a_file_that_is_no_device_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
