// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * load_available.c - how much host memory there is for a model: the kernel's MemAvailable
 * (proc(5)), or what the limit of the control group leaves where that is less (cgroup v2:
 * memory.max, memory.current of Documentation/admin-guide/cgroup-v2.rst).
 */
#include "load-internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A number after @key in a file of the kernel's; UINT64_MAX: none. */
static uint64_t read_number(const char *path, const char *key)
{
	uint64_t value = UINT64_MAX;
	char line[200];
	FILE *f = fopen(path, "re");

	if (!f)
		return value;
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, key, strlen(key)))
			continue;
		if (sscanf(line + strlen(key), "%" SCNu64, &value) != 1)
			value = UINT64_MAX;
		break;
	}
	fclose(f);
	return value;
}

/* Of this process's own group only; "max" is no number. */
static uint64_t group_available(void)
{
	char line[300] = "", path[400];
	uint64_t max, used;
	FILE *f = fopen("/proc/self/cgroup", "re");
	bool v2 = f && fgets(line, sizeof(line), f) && !strncmp(line, "0::", 3);

	if (f)
		fclose(f);
	if (!v2)
		return UINT64_MAX;
	line[strcspn(line, "\n")] = '\0';
	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", line + 3);
	max = read_number(path, "");
	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", line + 3);
	used = read_number(path, "");
	if (max == UINT64_MAX || used == UINT64_MAX)
		return UINT64_MAX;
	return max > used ? max - used : 0;
}

uint64_t ndpi_host_available(void)
{
	uint64_t kib = read_number("/proc/meminfo", "MemAvailable:");
	uint64_t machine = kib > UINT64_MAX / 1024 ? UINT64_MAX : 1024 * kib;
	uint64_t group = group_available();

	return machine < group ? machine : group;
}
