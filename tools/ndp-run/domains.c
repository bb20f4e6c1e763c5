// SPDX-License-Identifier: GPL-2.0-or-later
/* domains.c - see domains.h. */
#include "domains.h"
#include "error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *const domain_names[NDP_DOMAINS] = {
	[NDP_DOMAIN_GPU] = "gpu",
	[NDP_DOMAIN_CPU] = "cpu",
	[NDP_DOMAIN_NDP] = "ndp",
};

static int open_device(struct domains *d, const struct options *o, struct ndp_error *err)
{
	int r;

	/* Without --device and without ndp among the domains weights stay in host memory. */
	if (!o->device && !(d->mask & 1 << NDP_DOMAIN_NDP))
		return 0;
	r = ndp_open(&d->dev, o->device, err);
	if (r < 0)
		return r;
	r = ndp_device_info(d->dev, &d->device);
	if (r < 0)
		return fail(err, r, "the device cannot be asked: %s", strerror(-r));
	return 0;
}

static int open_cpu(struct domains *d, const struct options *o, struct ndp_error *err)
{
	const struct ndp_cpu_options options = {
		.threads = d->mask & 1 << NDP_DOMAIN_CPU ? o->threads : 1,
		.deterministic = o->deterministic,
	};
	int r = ndp_cpu_open(&d->cpu, &options, err);

	if (r < 0)
		return r;
	ndp_cpu_info(d->cpu, &d->cpu_info);
	return 0;
}

static int load_host(struct domains *d, const struct options *o, struct ndp_error *err)
{
	char *path;
	int r;

	if (!o->host)
		return 0;
	r = ndp_profile_find("hosts", o->host, &path, err);
	if (r < 0)
		return r;
	r = ndp_host_profile_load(&d->host, path, err);
	free(path);
	d->has_host = r == 0;
	return r;
}

int domains_open(struct domains *d, const struct options *o, struct ndp_error *err)
{
	int r;

	memset(d, 0, sizeof(*d));
	d->mask = o->domains;
	r = load_host(d, o, err);
	if (r == 0)
		r = open_device(d, o, err);
	return r < 0 ? r : open_cpu(d, o, err);
}

/* ---- the GPU --------------------------------------------------------------- */

static double mib(uint64_t bytes)
{
	return (double)bytes / (1 << 20);
}

static uint64_t expert_bytes(const struct ndp_model_info *info)
{
	return (uint64_t)ndp_expert_blocks(&info->routed) * ndp_expert_block_bytes(&info->routed);
}

/* What the GPU's memory has to say to a budget of @bytes. */
static int check_budget(const struct options *o, uint64_t bytes, uint64_t one,
			struct ndp_error *err)
{
	struct ndp_gpu_info info;
	struct ndp_gpu *gpu;
	int r;

	if (bytes < one)
		return fail(err, -ENOSPC, "--gpu-experts %" PRIu64 " (%.1f MiB) does not hold one "
			    "expert of %.1f MiB: give at least %" PRIu64 ", or 0 to leave the GPU "
			    "unused", bytes, mib(bytes), mib(one), one);
	r = ndp_gpu_open(&gpu, o->gpu, 0, err);
	if (r < 0)
		return r;
	ndp_gpu_info(gpu, &info);
	ndp_gpu_close(gpu);
	if (bytes > info.memory_bytes)
		return fail(err, -ENOSPC, "--gpu-experts: %" PRIu64 " experts of %.1f MiB: needs "
			    "%.1f MiB, %s has %.1f MiB, at most %" PRIu64 " fit", bytes / one,
			    mib(one), mib(bytes), info.name, mib(info.memory_bytes),
			    info.memory_bytes / one);
	return 0;
}

/* All experts, or three quarters of the GPU's memory, the rest being for activations. */
static int default_budget(const struct options *o, uint64_t all, uint64_t *bytes,
			  struct ndp_error *err)
{
	struct ndp_gpu_info info;
	struct ndp_gpu *gpu;
	int r = ndp_gpu_open(&gpu, o->gpu, 0, err);

	if (r < 0)
		return r;
	ndp_gpu_info(gpu, &info);
	ndp_gpu_close(gpu);
	*bytes = all < info.memory_bytes / 4 * 3 ? all : info.memory_bytes / 4 * 3;
	return 0;
}

int domains_open_gpu(struct domains *d, const struct options *o,
		     const struct ndp_model_info *info, struct ndp_error *err)
{
	const uint64_t one = expert_bytes(info);
	uint64_t bytes = o->gpu_experts;
	int r;

	if (!(d->mask & 1 << NDP_DOMAIN_GPU))
		return 0;
	if (o->gpu_experts == 0) {
		d->mask &= ~(1u << NDP_DOMAIN_GPU);
		d->gpu_unused = true;
		if (d->mask)
			return 0;
		return fail(err, -EINVAL, "--gpu-experts 0 leaves the GPU unused, and --domains "
			    "names nothing else that computes: add cpu or ndp");
	}
	if (o->gpu_experts == OPTIONS_GPU_ALL)
		r = default_budget(o, one * info->moe_layers * info->router.experts, &bytes, err);
	else
		r = check_budget(o, bytes, one, err);
	return r < 0 ? r : ndp_gpu_open(&d->gpu, o->gpu, bytes, err);
}

void domains_close(struct domains *d)
{
	if (d->gpu)
		ndp_gpu_close(d->gpu);
	if (d->cpu)
		ndp_cpu_close(d->cpu);
	if (d->dev)
		ndp_close(d->dev);
}
