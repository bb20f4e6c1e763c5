// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * topology.c - ndpctl topology: which DIMMs of a domain reach which others over
 * DIMM-Link, how fast, and at which NUMA node each of them is.
 */
#include "ndpctl.h"
#include "../ndp-run/interrupt.h"

#include <string.h>

struct topology {
	struct ndp_device_info device;
	struct ndp_dimm_info dimm[NDP_MAX_DIMMS];
	uint32_t ready;		/* mask */
};

/* Every DIMM that is ready reaches all others that are. */
static bool complete(const struct topology *t)
{
	for (uint32_t m = t->ready; m; m &= m - 1) {
		const uint32_t k = (uint32_t)__builtin_ctz(m);

		if (t->ready & ~(t->dimm[k].link_peers | 1u << k))
			return false;
	}
	return true;
}

static json_t *numa_json(const struct topology *t)
{
	json_t *all = json_array();
	uint32_t seen = 0;

	for (uint32_t m = t->device.dimm_mask; m; m &= m - 1) {
		const int node = t->dimm[__builtin_ctz(m)].numa_node;
		uint32_t same = 0;

		if (seen >> __builtin_ctz(m) & 1)
			continue;
		for (uint32_t k = m; k; k &= k - 1)
			if (t->dimm[__builtin_ctz(k)].numa_node == node)
				same |= 1u << __builtin_ctz(k);
		seen |= same;
		json_array_append_new(all, json_pack(
			"{s:o, s:o}", "node", node < 0 ? json_null() : json_integer(node), "dimms",
			dimms_json(same)));
	}
	return all;
}

static json_t *document(const struct topology *t)
{
	char online[64];
	json_t *dimms = json_array();

	file_line(online, sizeof(online), "%s/devices/system/node/online", roots.sys);
	for (uint32_t m = t->device.dimm_mask; m; m &= m - 1) {
		const uint32_t k = (uint32_t)__builtin_ctz(m);
		const struct ndp_dimm_info *i = &t->dimm[k];

		json_array_append_new(dimms, json_pack(
			"{s:i, s:s, s:o, s:{s:o, s:o}, s:o}", "dimm", (int)k, "state",
			dimm_state_name(i->state), "numa_node",
			i->numa_node < 0 ? json_null() : json_integer(i->numa_node), "port",
			"mbps", json_u64(i->link_mbps), "latency_ns",
			json_u64(i->link_latency_ns), "peers", dimms_json(i->link_peers)));
	}
	return json_pack("{s:o, s:o, s:b, s:b, s:o, s:o, s:o}", "device",
			 json_text(t->device.name), "domain",
			 t->device.domain[0] ? json_text(t->device.domain) : json_null(), "link",
			 (int)t->device.link, "complete", (int)complete(t), "dimms", dimms,
			 "numa_nodes", numa_json(t), "numa_online",
			 online[0] ? json_text(online) : json_null());
}

/* A port's rate where two DIMMs are peers: the slower one's. */
static void print_human(const struct topology *t)
{
	char titles[TABLE_COLUMNS * 8 + 64], row[NDP_MAX_DIMMS * 16 + 64];
	const bool narrow = __builtin_popcount(t->device.dimm_mask) <= TABLE_COLUMNS - 5;
	struct table table;
	size_t at;

	printf("%s, domain %s, DIMM-Link %s\n", t->device.name,
	       t->device.domain[0] ? t->device.domain : "-",
	       !t->device.link ? "none" : complete(t) ? "complete" : "not between all DIMMs");
	printf("Under a DIMM's number: GB/s of a copy between the two.\n\n");
	at = (size_t)snprintf(titles, sizeof(titles), ">DIMM\tSTATE\t>NUMA\t>PORT\t>LATENCY");
	for (uint32_t m = t->device.dimm_mask; m && narrow; m &= m - 1)
		at += (size_t)snprintf(titles + at, sizeof(titles) - at, "\t>%d",
				       __builtin_ctz(m));
	if (!narrow)
		snprintf(titles + at, sizeof(titles) - at, "\tPEERS");
	table_begin(&table, titles);
	for (uint32_t m = t->device.dimm_mask; m; m &= m - 1) {
		const uint32_t k = (uint32_t)__builtin_ctz(m);
		const struct ndp_dimm_info *i = &t->dimm[k];
		char mask[64], numa[16];

		at = 0;
		row[0] = '\0';
		for (uint32_t o = t->device.dimm_mask; o && narrow; o &= o - 1) {
			const struct ndp_dimm_info *other = &t->dimm[__builtin_ctz(o)];
			const uint32_t mbps = i->link_mbps < other->link_mbps ? i->link_mbps :
										other->link_mbps;

			if (i->link_peers >> __builtin_ctz(o) & 1)
				at += (size_t)snprintf(row + at, sizeof(row) - at, "\t%.1f",
						       mbps / 1e3);
			else
				at += (size_t)snprintf(row + at, sizeof(row) - at, "\t-");
		}
		if (!narrow)
			snprintf(row, sizeof(row), "\t%s",
				 text_mask(mask, sizeof(mask), i->link_peers));
		table_row(&table, "%u\t%s\t%s\t%.1f GB/s\t%u ns%s", k, dimm_state_name(i->state),
			  text_numa(numa, sizeof(numa), i->numa_node), i->link_mbps / 1e3,
			  i->link_latency_ns, row);
	}
	table_end(&table, stdout);
}

int cmd_topology(const struct options *o, struct ndp_error *err)
{
	struct topology t = { 0 };
	struct ndp_device *dev;

	if (ndp_open(&dev, o->device, err) < 0)
		return STATUS_FAILED;
	ndp_device_info(dev, &t.device);
	for (uint32_t m = t.device.dimm_mask; m; m &= m - 1) {
		const uint32_t k = (uint32_t)__builtin_ctz(m);

		if (ndp_dimm_info(dev, k, &t.dimm[k]) < 0)
			t.dimm[k] = (struct ndp_dimm_info){ .numa_node = -1 };
		else if (t.dimm[k].state == NDP_DIMM_READY)
			t.ready |= 1u << k;
	}
	ndp_close(dev);
	interrupt_mute();
	if (!o->human)
		return out_json(stdout, document(&t), err) < 0 ? STATUS_FAILED : STATUS_OK;
	print_human(&t);
	return STATUS_OK;
}
