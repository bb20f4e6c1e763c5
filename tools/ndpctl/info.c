// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * info.c - ndpctl info: a device and its DIMMs, as the library describes them.
 *
 * Times are modelled or wall, and say so.
 */
#include "ndpctl.h"
#include "../ndp-run/interrupt.h"

#include <errno.h>
#include <string.h>

static json_t *dimm_json(uint32_t d, const struct ndp_dimm_info *i)
{
	return json_pack("{s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
			 "s:o, s:o, s:o, s:o}",
			 "dimm", (int)d, "state", dimm_state_name(i->state), "generation",
			 json_u64(i->generation), "numa_node",
			 i->numa_node < 0 ? json_null() : json_integer(i->numa_node), "link_peers",
			 dimms_json(i->link_peers), "memory_bytes", json_u64(i->mem_bytes),
			 "free_bytes", json_u64(i->free_bytes), "largest_free_bytes",
			 json_u64(i->largest_free_bytes), "internal_mbps",
			 json_u64(i->internal_mbps), "gflops", json_u64(i->gflops), "overhead_ns",
			 json_u64(i->overhead_ns), "link_mbps", json_u64(i->link_mbps),
			 "link_latency_ns", json_u64(i->link_latency_ns), "resets",
			 json_u64(i->resets), "inflight", json_u64(i->inflight),
			 "cache_lines_flushed", json_u64(i->cache_lines_flushed), "compute",
			 counters_json(&i->compute), "link", counters_json(&i->link));
}

static json_t *device_json(const struct ndp_device_info *d)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:b, s:b, s:o, s:o}", "device", json_text(d->name),
			 "domain", d->domain[0] ? json_text(d->domain) : json_null(), "dimm_mask",
			 json_u64(d->dimm_mask), "max_tokens", json_u64(d->max_tokens), "coherent",
			 (int)d->coherent, "link", (int)d->link, "quota_bytes",
			 d->quota_bytes ? json_u64(d->quota_bytes) : json_null(), "used_bytes",
			 json_u64(d->used_bytes));
}

static void print_counters(struct table *t, const char *what, uint32_t d,
			   const struct ndp_counters *c)
{
	char commands[16], tokens[16], bytes[16], busy[16], wall[16];

	table_row(t, "%u\t%s\t%s\t%llu\t%s\t%s\t%s\t%s", d, what,
		  text_count(commands, sizeof(commands), (double)c->commands),
		  (unsigned long long)c->errors, text_count(tokens, sizeof(tokens),
							    (double)c->tokens),
		  text_bytes(bytes, sizeof(bytes), (double)c->bytes),
		  text_ns(busy, sizeof(busy), (double)c->busy_ns),
		  text_ns(wall, sizeof(wall), (double)c->wall_ns));
}

static void print_human(const struct ndp_device_info *d, const struct ndp_dimm_info *dimms)
{
	char mask[128], a[16], b[16], c[16], numa[16];
	struct table t;

	printf("%s, domain %s, DIMMs %s, %s, DIMM-Link %s, at most %u tokens in a command\n",
	       d->name, d->domain[0] ? d->domain : "-", text_mask(mask, sizeof(mask), d->dimm_mask),
	       d->coherent ? "coherent" : "not coherent", d->link ? "yes" : "no", d->max_tokens);
	printf("used by you: %s, quota: %s\n\n", text_bytes(a, sizeof(a), (double)d->used_bytes),
	       d->quota_bytes ? text_bytes(b, sizeof(b), (double)d->quota_bytes) : "none");
	table_begin(&t, ">DIMM\tSTATE\t>NUMA\t>MEMORY\t>FREE\t>LARGEST\t>INSIDE\t>GFLOPS\t"
		    ">OVERHEAD\t>LINK\t>LATENCY\tPEERS\t>RESETS\t>UNDER WAY");
	for (uint32_t m = d->dimm_mask; m; m &= m - 1) {
		const uint32_t k = (uint32_t)__builtin_ctz(m);
		const struct ndp_dimm_info *i = &dimms[k];

		table_row(&t, "%u\t%s\t%s\t%s\t%s\t%s\t%.1f GB/s\t%u\t%u ns\t%.1f GB/s\t%u "
			  "ns\t%s\t%u\t%u", k, dimm_state_name(i->state),
			  text_numa(numa, sizeof(numa), i->numa_node),
			  text_bytes(a, sizeof(a), (double)i->mem_bytes),
			  text_bytes(b, sizeof(b), (double)i->free_bytes),
			  text_bytes(c, sizeof(c), (double)i->largest_free_bytes),
			  i->internal_mbps / 1e3, i->gflops, i->overhead_ns, i->link_mbps / 1e3,
			  i->link_latency_ns, text_mask(mask, sizeof(mask), i->link_peers),
			  i->resets, i->inflight);
	}
	table_end(&t, stdout);
	putchar('\n');
	table_begin(&t, ">DIMM\tENGINE\t>COMMANDS\t>ERRORS\t>TOKENS\t>BYTES\t>BUSY (MODELLED)\t"
		    ">BUSY (WALL)");
	for (uint32_t m = d->dimm_mask; m; m &= m - 1) {
		const uint32_t k = (uint32_t)__builtin_ctz(m);

		print_counters(&t, "compute", k, &dimms[k].compute);
		print_counters(&t, "link", k, &dimms[k].link);
	}
	table_end(&t, stdout);
}

int cmd_info(const struct options *o, struct ndp_error *err)
{
	struct ndp_dimm_info dimms[NDP_MAX_DIMMS] = { 0 };
	struct ndp_device_info device;
	struct ndp_device *dev;
	json_t *doc, *all;

	if (ndp_open(&dev, o->device, err) < 0)
		return STATUS_FAILED;
	ndp_device_info(dev, &device);
	for (uint32_t m = device.dimm_mask; m; m &= m - 1) {
		const uint32_t k = (uint32_t)__builtin_ctz(m);

		/* One that goes away in this moment is absent. */
		if (ndp_dimm_info(dev, k, &dimms[k]) < 0)
			dimms[k] = (struct ndp_dimm_info){ .state = NDP_DIMM_ABSENT };
	}
	ndp_close(dev);
	interrupt_mute();
	if (o->human) {
		print_human(&device, dimms);
		return STATUS_OK;
	}
	doc = device_json(&device);
	all = json_array();
	for (uint32_t m = device.dimm_mask; m; m &= m - 1)
		json_array_append_new(all, dimm_json((uint32_t)__builtin_ctz(m),
						     &dimms[__builtin_ctz(m)]));
	json_object_set_new(doc, "dimms", all);
	return out_json(stdout, doc, err) < 0 ? STATUS_FAILED : STATUS_OK;
}
