// SPDX-License-Identifier: GPL-2.0-or-later
/* kt_host.c - requests to the host of the guest; see kt_host.h. */
#include "kt_host.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HOST	"/bin/host"

bool kt_host_there(void)
{
	return !access(HOST, X_OK);
}

int kt_host(char *answer, size_t bytes, const char *args, ...)
{
	char command[512] = HOST " ", text[512] = "";
	size_t used = strlen(command), len;
	va_list ap;
	FILE *f;
	int r;

	if (!kt_host_there())
		return -ENOENT;
	va_start(ap, args);
	r = vsnprintf(command + used, sizeof(command) - used, args, ap);
	va_end(ap);
	if (r < 0 || used + r >= sizeof(command))
		return -EMSGSIZE;
	f = popen(command, "re");
	if (!f)
		return -errno;
	if (!fgets(text, sizeof(text), f))
		text[0] = '\0';
	r = pclose(f);
	if (r == -1)
		return -errno;
	if (r)
		return -EREMOTEIO;
	len = strcspn(text, "\n");
	text[len] = '\0';
	if (answer)
		snprintf(answer, bytes, "%s", text);
	return 0;
}

int kt_set(unsigned int dimm, const char *property, const char *value)
{
	return kt_host(NULL, 0, "set dimm%u %s %s", dimm, property, value);
}

int kt_unplug(unsigned int dimm)
{
	return kt_host(NULL, 0, "unplug dimm%u", dimm);
}

int kt_plug(unsigned int dimm)
{
	return kt_host(NULL, 0, "plug dimm%u", dimm);
}

int kt_pci_address(unsigned int dimm, char *address, size_t bytes)
{
	char link[128], target[PATH_MAX], *base;
	ssize_t n;

	snprintf(link, sizeof(link), "/sys/class/ndp/%sd%u/pci", strrchr(kt_node(), '/') + 1,
		 dimm);
	n = readlink(link, target, sizeof(target) - 1);
	if (n < 0)
		return -errno;
	target[n] = '\0';
	base = strrchr(target, '/');
	n = snprintf(address, bytes, "%s", base ? base + 1 : target);
	return n < (ssize_t)bytes ? 0 : -EMSGSIZE;
}

#define DRIVER	"/sys/bus/pci/drivers/moendp/"

int kt_unbind(const char *address)
{
	return kt_write_file(DRIVER "unbind", address);
}

int kt_bind(const char *address)
{
	return kt_write_file(DRIVER "bind", address);
}

int kt_timeout_ms(unsigned int ms)
{
	const char *path = "/sys/module/moendp/parameters/timeout_ms";
	int old = kt_read_number(path);
	char text[16];
	int r;

	if (old < 0)
		return old;
	snprintf(text, sizeof(text), "%u", ms);
	r = kt_write_file(path, text);
	return r < 0 ? r : old;
}

int kt_wait_state(int fd, unsigned int dimm, uint32_t state, unsigned int timeout_ms)
{
	uint64_t end = kt_now_ms() + timeout_ms;
	struct moendp_query q;
	int r;

	for (;;) {
		r = kt_query(fd, dimm, &q);
		if (r < 0)
			return r;
		if (q.dimm_state == state)
			return 0;
		if (kt_now_ms() > end)
			return -ETIMEDOUT;
		kt_sleep_ms(20);
	}
}
