/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * soft.c - opening an in-process domain of DIMMs, and what it says of itself.
 *
 * Its options say what is modelled; ndp_chip_params_default() is the rest.
 */
#include "soft.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MIN_DIMM_BYTES (1ULL << 20)
#define MAX_DIMM_BYTES (1ULL << 42)

/* ---- options --------------------------------------------------------- */

struct options {
	uint32_t dimms;
	uint64_t size;
	bool timing;
	enum ndp_chip_isa isa;
	struct ndp_chip_params params;
};

static bool parse_u64(const char *s, const char **end, uint64_t *n)
{
	unsigned long long v;
	char *e;

	if (*s < '0' || *s > '9')
		return false;
	errno = 0;
	v = strtoull(s, &e, 10);
	*end = e;
	*n = v;
	return !errno;
}

static bool parse_bytes(const char *s, uint64_t *bytes)
{
	static const char units[] = "KMG";
	const char *end, *unit;
	unsigned int shift = 0;

	if (!parse_u64(s, &end, bytes))
		return false;
	if (*end) {
		unit = strchr(units, *end & ~0x20);
		if (!unit || end[1])
			return false;
		shift = 10 * (unsigned int)(unit - units + 1);
	}
	if (*bytes > MAX_DIMM_BYTES >> shift)
		return false;
	*bytes <<= shift;
	return *bytes >= MIN_DIMM_BYTES && !(*bytes % SOFT_PAGE);
}

static int set_size(struct options *o, const char *value, struct ndp_error *err)
{
	if (parse_bytes(value, &o->size))
		return 0;
	return ndpi_fail(err, -EINVAL,
			 "soft: size=%s: wanted bytes of a DIMM, a multiple of 4K from 1M to 4096G, like 256M",
			 value);
}

static int set_timing(struct options *o, const char *value, struct ndp_error *err)
{
	o->timing = !strcmp(value, "on");
	if (o->timing || !strcmp(value, "off"))
		return 0;
	return ndpi_fail(err, -EINVAL, "soft: timing=%s: wanted on or off", value);
}

static int set_isa(struct options *o, const char *value, struct ndp_error *err)
{
	static const char *const names[] = {
		[NDP_CHIP_ISA_SCALAR] = "scalar",
		[NDP_CHIP_ISA_AVX2] = "avx2",
		[NDP_CHIP_ISA_AVX512_BF16] = "avx512",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(value, names[i]) != 0)
			continue;
		o->isa = (enum ndp_chip_isa)i;
		if (ndp_chip_isa_usable(o->isa))
			return 0;
		return ndpi_fail(err, -EOPNOTSUPP,
				 "soft: isa=%s: this CPU cannot run it; its best is %s", value,
				 names[ndp_chip_isa_best()]);
	}
	return ndpi_fail(err, -EINVAL, "soft: isa=%s: wanted scalar, avx2 or avx512", value);
}

static int set_number(uint32_t *to, uint32_t min, uint32_t max, const char *key, const char *value,
		      struct ndp_error *err)
{
	const char *end;
	uint64_t n;

	if (parse_u64(value, &end, &n) && !*end && n >= min && n <= max) {
		*to = (uint32_t)n;
		return 0;
	}
	return ndpi_fail(err, -EINVAL, "soft: %s=%s: wanted a number from %" PRIu32 " to %" PRIu32,
			 key, value, min, max);
}

static int set_option(struct options *o, const char *key, const char *value, struct ndp_error *err)
{
	struct {
		const char *key;
		uint32_t *to;
		uint32_t min, max;
	} numbers[] = {
		{ "dimms", &o->dimms, 1, NDP_MAX_DIMMS },
		{ "internal-mbps", &o->params.internal_mbps, 1, UINT32_MAX },
		{ "gflops", &o->params.gflops, 1, UINT32_MAX },
		{ "overhead-ns", &o->params.overhead_ns, 0, UINT32_MAX },
		{ "link-mbps", &o->params.link_mbps, 1, UINT32_MAX },
		{ "link-latency-ns", &o->params.link_latency_ns, 0, UINT32_MAX },
	};

	if (!strcmp(key, "size"))
		return set_size(o, value, err);
	if (!strcmp(key, "timing"))
		return set_timing(o, value, err);
	if (!strcmp(key, "isa"))
		return set_isa(o, value, err);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!strcmp(key, numbers[i].key))
			return set_number(numbers[i].to, numbers[i].min, numbers[i].max, key, value,
					  err);
	return ndpi_fail(err, -EINVAL,
			 "soft: option \"%s\" is not known: wanted dimms, size, timing, isa, internal-mbps, gflops, overhead-ns, link-mbps or link-latency-ns",
			 key);
}

static int parse_options(struct options *o, const char *text, struct ndp_error *err)
{
	char copy[256], *rest = copy, *item;

	*o = (struct options){ .dimms = 4, .size = 256ULL << 20, .isa = ndp_chip_isa_best() };
	ndp_chip_params_default(&o->params);
	if (strlen(text) >= sizeof(copy))
		return ndpi_fail(err, -EINVAL, "soft: the options are longer than %zu bytes",
				 sizeof(copy) - 1);
	memcpy(copy, text, strlen(text) + 1);
	while ((item = strsep(&rest, ","))) {
		char *value = strchr(item, '=');
		int r;

		if (!*item && item == copy && !rest)
			break; /* "soft:" alone */
		if (!value)
			return ndpi_fail(err, -EINVAL,
					 "soft: \"%s\": wanted KEY=VALUE, separated by commas",
					 item);
		*value++ = '\0';
		r = set_option(o, item, value, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- what it says of itself ------------------------------------------ */

static int soft_info(struct ndp_device *base, struct ndp_device_info *info)
{
	struct soft_device *dev = (struct soft_device *)base;

	memcpy(info->domain, dev->domain, sizeof(info->domain));
	info->dimm_mask = UINT32_MAX >> (NDP_MAX_DIMMS - dev->nr_dimms);
	info->max_tokens = base->max_tokens;
	info->coherent = true;
	info->link = true;
	info->used_bytes = __atomic_load_n(&dev->used_bytes, __ATOMIC_RELAXED);
	return 0;
}

static struct ndp_counters read_counters(const struct ndp_counters *c)
{
	return (struct ndp_counters){
		.commands = __atomic_load_n(&c->commands, __ATOMIC_RELAXED),
		.errors = __atomic_load_n(&c->errors, __ATOMIC_RELAXED),
		.tokens = __atomic_load_n(&c->tokens, __ATOMIC_RELAXED),
		.bytes = __atomic_load_n(&c->bytes, __ATOMIC_RELAXED),
		.busy_ns = __atomic_load_n(&c->busy_ns, __ATOMIC_RELAXED),
		.wall_ns = __atomic_load_n(&c->wall_ns, __ATOMIC_RELAXED),
	};
}

int soft_dimm_info(struct ndp_device *base, uint32_t dimm, struct ndp_dimm_info *info)
{
	struct soft_device *dev = (struct soft_device *)base;
	struct soft_dimm *d;

	if (dimm >= dev->nr_dimms)
		return 0; /* absent */
	d = &dev->dimms[dimm];
	info->state = NDP_DIMM_READY;
	info->numa_node = -1;
	info->link_peers = UINT32_MAX >> (NDP_MAX_DIMMS - dev->nr_dimms) & ~(1U << dimm);
	info->mem_bytes = d->mem.bytes - d->mem.reserve_bytes;
	soft_memory_state(d, &info->free_bytes, &info->largest_free_bytes);
	info->internal_mbps = dev->params.internal_mbps;
	info->gflops = dev->params.gflops;
	info->overhead_ns = dev->params.overhead_ns;
	info->link_mbps = dev->params.link_mbps;
	info->link_latency_ns = dev->params.link_latency_ns;
	info->compute = read_counters(&d->compute.counters);
	info->link = read_counters(&d->link.counters);
	info->inflight = __atomic_load_n(&d->compute.inflight, __ATOMIC_RELAXED) +
			 __atomic_load_n(&d->link.inflight, __ATOMIC_RELAXED);
	return 0;
}

/* ---- opening --------------------------------------------------------- */

static void soft_close(struct ndp_device *base)
{
	struct soft_device *dev = (struct soft_device *)base;

	soft_lend_end(dev);
	for (uint32_t i = 0; i < dev->nr_dimms; i++) {
		soft_engines_stop(&dev->dimms[i]);
		soft_memory_fini(&dev->dimms[i]);
	}
	pthread_mutex_destroy(&dev->port_lock);
	pthread_mutex_destroy(&dev->move_lock);
	free(dev);
}

static const struct ndpi_backend_ops soft_ops = {
	.request_bytes = sizeof(struct soft_request),
	.close = soft_close,
	.info = soft_info,
	.dimm_info = soft_dimm_info,
	.weights_alloc = soft_weights_alloc,
	.weights_create = soft_weights_create,
	.weights_destroy = soft_weights_destroy,
	.weights_block = soft_weights_block,
	.weights_seal = soft_weights_seal,
	.weights_map = soft_weights_map,
	.weights_info = soft_weights_info,
	.weights_migrate = soft_weights_migrate,
	.io_alloc = soft_io_alloc,
	.io_create = soft_io_create,
	.io_destroy = soft_io_destroy,
	.run = soft_run,
	.queue_alloc = soft_queue_alloc,
	.queue_create = soft_queue_create,
	.queue_destroy = soft_queue_destroy,
	.queue_push = soft_queue_push,
	.queue_submit = soft_queue_submit,
	.queue_reap = soft_queue_reap,
	.placement_fd = soft_placement_fd,
	.placement_revoke = soft_placement_revoke,
};

_Static_assert(sizeof(struct soft_request) <= NDPI_REQUEST_MAX, "fits ndp_run()");

/* A random UUID (RFC 4122, version 4). */
static void new_domain(char text[37])
{
	uint8_t u[16] = { 0 };

	if (getrandom(u, sizeof(u), 0) != sizeof(u))
		memset(u, 0, sizeof(u));
	u[6] = (u[6] & 0x0f) | 0x40;
	u[8] = (u[8] & 0x3f) | 0x80;
	for (int i = 0; i < 16; i++)
		text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
				u[i]);
}

int ndpi_soft_open(struct ndp_device **out, const char *text, struct ndp_error *err)
{
	struct soft_device *dev;
	struct options o;
	int r = parse_options(&o, text, err);

	if (r < 0)
		return r;
	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return ndpi_fail(err, -ENOMEM, "soft: no memory for a domain");
	dev->base.ops = &soft_ops;
	dev->base.refs = 1;
	dev->base.max_tokens = NDP_CHIP_MAX_TOKENS;
	dev->base.coherent = true;
	memcpy(dev->base.name, "soft", sizeof("soft"));
	dev->params = o.params;
	dev->isa = o.isa;
	dev->timing = o.timing;
	dev->waiting_tail = &dev->waiting;
	pthread_mutex_init(&dev->port_lock, NULL);
	pthread_mutex_init(&dev->move_lock, NULL);
	soft_lend_init(dev);
	new_domain(dev->domain);
	while (!r && dev->nr_dimms < o.dimms) {
		struct soft_dimm *d = &dev->dimms[dev->nr_dimms];

		d->dev = dev;
		d->node = dev->nr_dimms++;
		r = soft_memory_init(d, o.size);
		if (!r)
			r = soft_engines_start(d);
	}
	if (r < 0) {
		soft_close(&dev->base);
		return ndpi_fail(err, r, "soft: %" PRIu32 " DIMMs of %" PRIu64 " bytes: %s",
				 o.dimms, o.size, strerror(-r));
	}
	*out = &dev->base;
	return 0;
}
