// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * opencl.c - the OpenCL back end of the GPU domain (gpu.h): any device with OpenCL
 * 1.2 and nothing optional.
 *
 * Pinned memory is a buffer with CL_MEM_ALLOC_HOST_PTR that stays mapped, which is what
 * vendors document as the way to get copies at the bus's speed.  A kernel object holds
 * its arguments, so each stream that computes has its own.  From the OpenCL 1.2
 * specification; a device that gives any error but those of memory counts as lost.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include "gpu.h"

#include <CL/cl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char source[] =
#include "opencl.cl.inc"
	;

/*
 * What opencl.cl is built with: KS, TG, TT.  A GPU has lanes and needs many work-items; a
 * CPU has vectors and none to spare for what work-items of a group say to each other.
 */
struct shape {
	unsigned int ks, tg, tt, up_to;
};
static const struct shape gpu_shapes[NDPI_GPU_VARIANTS] = {
	{ 8, 1, 1, 1 }, { 8, 1, 4, 8 }, { 2, 4, 8, UINT32_MAX }
};
static const struct shape cpu_shapes[NDPI_GPU_VARIANTS] = {
	{ 1, 1, 1, 1 }, { 1, 1, 4, 4 }, { 1, 1, 8, UINT32_MAX }
};

struct device {
	cl_context context;
	cl_device_id id;
	const struct shape *shapes;	/* [NDPI_GPU_VARIANTS] */
	unsigned int width;		/* W of opencl.cl */
	cl_program programs[NDPI_GPU_VARIANTS];
	cl_command_queue queue;	/* for mapping */
	pthread_mutex_t lock;	/* of @queue */
};

struct ndpi_gpu_mem {
	cl_mem mem;
	void *mapped;
};

struct ndpi_gpu_stream {
	cl_command_queue queue;
	cl_kernel h[NDPI_GPU_VARIANTS], y[NDPI_GPU_VARIANTS];
	size_t group[NDPI_GPU_VARIANTS];	/* work-items */
};

/* OpenCL's own. */
static cl_event as_event(struct ndpi_gpu_event *e)
{
	return (cl_event)e;
}

static int code(cl_int r)
{
	switch (r) {
	case CL_SUCCESS:
		return 0;
	case CL_OUT_OF_HOST_MEMORY:
	case CL_MEM_OBJECT_ALLOCATION_FAILURE:
	case CL_INVALID_BUFFER_SIZE:
		return -ENOMEM;
	default:
		return -ENODEV;
	}
}

/* ---- choosing a device ---------------------------------------------------------- */

struct candidate {
	cl_platform_id platform;
	cl_device_id id;
	unsigned int p, d;	/* numbers */
	cl_device_type type;
	char name[128];
};

static void platform_text(cl_platform_id p, cl_platform_info what, char *out, size_t n)
{
	if (clGetPlatformInfo(p, what, n - 1, out, NULL) != CL_SUCCESS)
		snprintf(out, n, "?");
}

static void device_text(cl_device_id d, cl_device_info what, char *out, size_t n)
{
	if (clGetDeviceInfo(d, what, n - 1, out, NULL) != CL_SUCCESS)
		snprintf(out, n, "?");
}

static void describe(struct candidate *c)
{
	char platform[256] = "", device[256] = "";

	platform_text(c->platform, CL_PLATFORM_NAME, platform, sizeof(platform));
	device_text(c->id, CL_DEVICE_NAME, device, sizeof(device));
	snprintf(c->name, sizeof(c->name), "%.48s: %.76s", platform, device);
	if (clGetDeviceInfo(c->id, CL_DEVICE_TYPE, sizeof(c->type), &c->type, NULL) != CL_SUCCESS)
		c->type = CL_DEVICE_TYPE_DEFAULT;
}

#define MAX_CANDIDATES 64

static unsigned int list_devices(struct candidate *all)
{
	cl_platform_id platforms[16];
	cl_uint np = 0, n = 0;

	if (clGetPlatformIDs(16, platforms, &np) != CL_SUCCESS)
		return 0; /* also when there is no platform */
	for (cl_uint p = 0; p < np && p < 16; p++) {
		cl_device_id ids[16];
		cl_uint nd = 0;

		if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 16, ids, &nd) != CL_SUCCESS)
			continue;
		for (cl_uint d = 0; d < nd && d < 16 && n < MAX_CANDIDATES; d++, n++) {
			all[n] = (struct candidate){
				.platform = platforms[p], .id = ids[d], .p = p, .d = d,
			};
			describe(&all[n]);
		}
	}
	return n;
}

static const struct candidate *choose(const struct candidate *all, unsigned int n,
				      const char *which)
{
	unsigned int p, d;
	int end = 0;

	if (!which) {
		for (unsigned int i = 0; i < n; i++)
			if (all[i].type & CL_DEVICE_TYPE_GPU)
				return &all[i];
		return n ? &all[0] : NULL;
	}
	if (sscanf(which, "%u.%u%n", &p, &d, &end) == 2 && !which[end]) {
		for (unsigned int i = 0; i < n; i++)
			if (all[i].p == p && all[i].d == d)
				return &all[i];
		return NULL;
	}
	for (unsigned int i = 0; i < n && *which; i++)
		if (strcasestr(all[i].name, which))
			return &all[i];
	return NULL;
}

static int no_device(const struct candidate *all, unsigned int n, const char *which,
		     struct ndp_error *err)
{
	char there[400] = "";

	if (!n)
		return ndpi_fail(err, -ENODEV,
				 "GPU \"opencl%s%s\": this system has no OpenCL device; install the "
				 "GPU's OpenCL driver, or pocl-opencl-icd to use the CPUs",
				 which ? ":" : "", which ? which : "");
	for (unsigned int i = 0; i < n; i++) {
		size_t used = strlen(there);

		snprintf(there + used, sizeof(there) - used, "%s%u.%u %s", i ? ", " : "", all[i].p,
			 all[i].d, all[i].name);
	}
	return ndpi_fail(err, -ENODEV, "GPU \"opencl:%s\": no such OpenCL device; there are: %s",
			 which, there);
}

/* ---- opening --------------------------------------------------------------------------- */

static int build(struct device *dev, const char *name, struct ndp_error *err)
{
	const char *text = source;

	for (int v = 0; v < NDPI_GPU_VARIANTS; v++) {
		char options[80], log[300] = "";
		cl_int r;

		snprintf(options, sizeof(options), "-cl-std=CL1.2 -DW=%u -DKS=%u -DTG=%u -DTT=%u",
			 dev->width, dev->shapes[v].ks, dev->shapes[v].tg, dev->shapes[v].tt);
		dev->programs[v] = clCreateProgramWithSource(dev->context, 1, &text, NULL, &r);
		if (r == CL_SUCCESS)
			r = clBuildProgram(dev->programs[v], 1, &dev->id, options, NULL, NULL);
		if (r == CL_SUCCESS)
			continue;
		if (dev->programs[v])
			clGetProgramBuildInfo(dev->programs[v], dev->id, CL_PROGRAM_BUILD_LOG,
					      sizeof(log) - 1, log, NULL);
		return ndpi_fail(err, -ENODEV,
				 "GPU %s: its compiler refused the kernels (OpenCL error %d): %s", name,
				 r, log);
	}
	return 0;
}

static size_t group_size(const struct device *dev, int v)
{
	return (size_t)NDP_BLOCK_ROWS / dev->width * dev->shapes[v].ks * dev->shapes[v].tg;
}

/* How its kernels are to be built. */
static void shape_kernels(struct device *dev, const struct candidate *c,
			  struct ndpi_gpu_limits *limits)
{
	cl_uint width = 0;

	dev->shapes = gpu_shapes;
	dev->width = 1;
	clGetDeviceInfo(c->id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof(width), &width, NULL);
	if (limits->is_cpu && !limits->lanes && (width == 4 || width == 8 || width == 16)) {
		dev->shapes = cpu_shapes;
		dev->width = width;
	}
	for (int v = 0; v < NDPI_GPU_VARIANTS; v++) {
		limits->up_to[v] = dev->shapes[v].up_to;
		limits->tile[v] = dev->shapes[v].tg * dev->shapes[v].tt;
	}
}

static int check_device(struct device *dev, const struct candidate *c,
			struct ndpi_gpu_limits *limits, struct ndp_error *err)
{
	size_t need = 0;
	cl_ulong memory = 0, largest = 0, local = 0;
	size_t group = 0;
	cl_bool little = CL_FALSE;

	clGetDeviceInfo(c->id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(memory), &memory, NULL);
	clGetDeviceInfo(c->id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(largest), &largest, NULL);
	clGetDeviceInfo(c->id, CL_DEVICE_LOCAL_MEM_SIZE, sizeof(local), &local, NULL);
	clGetDeviceInfo(c->id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(group), &group, NULL);
	clGetDeviceInfo(c->id, CL_DEVICE_ENDIAN_LITTLE, sizeof(little), &little, NULL);
	memcpy(limits->name, c->name, sizeof(limits->name));
	limits->memory_bytes = memory;
	limits->largest_bytes = largest;
	limits->is_cpu = (c->type & CL_DEVICE_TYPE_CPU) != 0;
	shape_kernels(dev, c, limits);
	for (int v = 0; v < NDPI_GPU_VARIANTS; v++)
		need = group_size(dev, v) > need ? group_size(dev, v) : need;
	if (group < need || local < 16384 || !little)
		return ndpi_fail(err, -ENODEV,
				 "GPU %s: the kernels need work-groups of %zu, 16384 bytes of local memory "
				 "and little-endian words; it has %zu, %llu and %s", c->name, need,
				 group, (unsigned long long)local, little ? "these" : "others");
	return 0;
}

static void ocl_close(void *p)
{
	struct device *dev = p;

	for (int v = 0; v < NDPI_GPU_VARIANTS; v++)
		if (dev->programs[v])
			clReleaseProgram(dev->programs[v]);
	if (dev->queue)
		clReleaseCommandQueue(dev->queue);
	if (dev->context)
		clReleaseContext(dev->context);
	pthread_mutex_destroy(&dev->lock);
	free(dev);
}

static int ocl_open(void **out, const char *which, struct ndpi_gpu_limits *limits,
		    struct ndp_error *err)
{
	struct candidate *all = calloc(MAX_CANDIDATES, sizeof(*all));
	struct device *dev = calloc(1, sizeof(*dev));
	const struct candidate *c;
	unsigned int n;
	cl_int cl;
	int r;

	if (!all || !dev) {
		free(all);
		free(dev);
		return ndpi_fail(err, -ENOMEM, "no memory");
	}
	pthread_mutex_init(&dev->lock, NULL);
	n = list_devices(all);
	c = choose(all, n, which);
	r = c ? check_device(dev, c, limits, err) : no_device(all, n, which, err);
	if (!r) {
		dev->id = c->id;
		dev->context = clCreateContext(NULL, 1, &dev->id, NULL, NULL, &cl);
		if (cl == CL_SUCCESS)
			dev->queue = clCreateCommandQueue(dev->context, dev->id, 0, &cl);
		if (cl != CL_SUCCESS)
			r = ndpi_fail(err, -ENODEV, "GPU %s: it cannot be used (OpenCL error %d)",
				      c->name, cl);
	}
	if (!r)
		r = build(dev, c->name, err);
	free(all);
	if (r)
		ocl_close(dev);
	else
		*out = dev;
	return r;
}

/* ---- memory ----------------------------------------------------------------------------- */

static int ocl_alloc(struct device *dev, struct ndpi_gpu_mem **out, size_t bytes,
		     cl_mem_flags flags)
{
	struct ndpi_gpu_mem *mem = calloc(1, sizeof(*mem));
	cl_int r;

	if (!mem)
		return -ENOMEM;
	mem->mem = clCreateBuffer(dev->context, flags, bytes, NULL, &r);
	if (r != CL_SUCCESS) {
		free(mem);
		return r == CL_OUT_OF_RESOURCES ? -ENOMEM : code(r);
	}
	*out = mem;
	return 0;
}

static int ocl_mem_alloc(void *dev, struct ndpi_gpu_mem **mem, size_t bytes)
{
	return ocl_alloc(dev, mem, bytes, CL_MEM_READ_WRITE);
}

static void ocl_mem_free(void *p, struct ndpi_gpu_mem *mem)
{
	struct device *dev = p;

	if (!mem)
		return;
	if (mem->mapped) {
		pthread_mutex_lock(&dev->lock);
		clEnqueueUnmapMemObject(dev->queue, mem->mem, mem->mapped, 0, NULL, NULL);
		clFinish(dev->queue);
		pthread_mutex_unlock(&dev->lock);
	}
	clReleaseMemObject(mem->mem);
	free(mem);
}

static int ocl_pinned_alloc(void *p, struct ndpi_gpu_mem **out, void **ptr, size_t bytes)
{
	struct device *dev = p;
	struct ndpi_gpu_mem *mem;
	int r = ocl_alloc(dev, &mem, bytes, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR);
	cl_int cl;

	if (r)
		return r;
	pthread_mutex_lock(&dev->lock);
	mem->mapped = clEnqueueMapBuffer(dev->queue, mem->mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE,
					 0, bytes, 0, NULL, NULL, &cl);
	pthread_mutex_unlock(&dev->lock);
	if (cl != CL_SUCCESS) {
		mem->mapped = NULL;
		ocl_mem_free(dev, mem);
		return cl == CL_MAP_FAILURE ? -ENOMEM : code(cl);
	}
	*ptr = mem->mapped;
	*out = mem;
	return 0;
}

/* ---- streams ------------------------------------------------------------------------------ */

static void ocl_stream_free(struct ndpi_gpu_stream *s)
{
	for (int v = 0; v < NDPI_GPU_VARIANTS; v++) {
		if (s->h[v])
			clReleaseKernel(s->h[v]);
		if (s->y[v])
			clReleaseKernel(s->y[v]);
	}
	if (s->queue)
		clReleaseCommandQueue(s->queue);
	free(s);
}

static int ocl_stream_create(void *p, struct ndpi_gpu_stream **out, bool compute)
{
	struct device *dev = p;
	struct ndpi_gpu_stream *s = calloc(1, sizeof(*s));
	cl_int r;

	if (!s)
		return -ENOMEM;
	s->queue = clCreateCommandQueue(dev->context, dev->id, CL_QUEUE_PROFILING_ENABLE, &r);
	for (int v = 0; compute && v < NDPI_GPU_VARIANTS && r == CL_SUCCESS; v++) {
		s->group[v] = group_size(dev, v);
		s->h[v] = clCreateKernel(dev->programs[v], "ffn_h", &r);
		if (r == CL_SUCCESS)
			s->y[v] = clCreateKernel(dev->programs[v], "ffn_y", &r);
	}
	if (r != CL_SUCCESS) {
		ocl_stream_free(s);
		return code(r);
	}
	*out = s;
	return 0;
}

static void ocl_stream_sync(struct ndpi_gpu_stream *s)
{
	clFinish(s->queue);
}

static int ocl_write(struct ndpi_gpu_stream *s, struct ndpi_gpu_mem *mem, size_t offset,
		     const void *host, size_t bytes, struct ndpi_gpu_event **event)
{
	return code(clEnqueueWriteBuffer(s->queue, mem->mem, CL_FALSE, offset, bytes, host, 0, NULL,
					 (cl_event *)event));
}

static int ocl_read(struct ndpi_gpu_stream *s, void *host, struct ndpi_gpu_mem *mem, size_t offset,
		    size_t bytes, struct ndpi_gpu_event **event)
{
	return code(clEnqueueReadBuffer(s->queue, mem->mem, CL_FALSE, offset, bytes, host, 0, NULL,
					(cl_event *)event));
}

static int ocl_mark(struct ndpi_gpu_stream *s, struct ndpi_gpu_event **event)
{
	return code(clEnqueueMarkerWithWaitList(s->queue, 0, NULL, (cl_event *)event));
}

static int ocl_after(struct ndpi_gpu_stream *s, struct ndpi_gpu_event *event)
{
	cl_event e = as_event(event);

	return code(clEnqueueBarrierWithWaitList(s->queue, 1, &e, NULL));
}

static int ocl_flush(struct ndpi_gpu_stream *s)
{
	return code(clFlush(s->queue));
}

/* ---- launches ----------------------------------------------------------------------------- */

struct args {
	cl_kernel kernel;
	cl_uint n;
	cl_int r;
};

static void arg(struct args *a, size_t bytes, const void *value)
{
	if (a->r == CL_SUCCESS)
		a->r = clSetKernelArg(a->kernel, a->n++, bytes, value);
}

static void arg_mem(struct args *a, const struct ndpi_gpu_mem *mem)
{
	arg(a, sizeof(cl_mem), &mem->mem);
}

/* A kernel wants a buffer for each; what no extent names is never read. */
static void arg_arenas(struct args *a, const struct ndpi_gpu_launch *l)
{
	for (int i = 0; i < NDPI_GPU_ARENAS; i++)
		arg_mem(a, l->arenas[i] ? l->arenas[i] : l->x);
}

static int enqueue(struct ndpi_gpu_stream *s, const struct args *a, uint32_t tiles, size_t local,
		   struct ndpi_gpu_event **event)
{
	size_t global = tiles * local;

	if (a->r != CL_SUCCESS)
		return code(a->r);
	return code(clEnqueueNDRangeKernel(s->queue, a->kernel, 1, NULL, &global, &local, 0, NULL,
					   (cl_event *)event));
}

static int ocl_launch(struct ndpi_gpu_stream *s, const struct ndpi_gpu_launch *l,
		      struct ndpi_gpu_event **event)
{
	struct args h = { .kernel = s->h[l->variant], .r = CL_SUCCESS };
	struct args y = { .kernel = s->y[l->variant], .r = CL_SUCCESS };
	int r;

	arg_mem(&h, l->jobs);
	arg_mem(&h, l->extents);
	arg_mem(&h, l->rows);
	arg(&h, sizeof(l->first_job), &l->first_job);
	arg(&h, sizeof(l->nr_jobs), &l->nr_jobs);
	arg_mem(&h, l->x);
	arg(&h, sizeof(l->ldx), &l->ldx);
	arg_mem(&h, l->h);
	arg_arenas(&h, l);
	r = enqueue(s, &h, l->tiles_h, s->group[l->variant], NULL);
	if (r)
		return r;
	arg_mem(&y, l->jobs);
	arg_mem(&y, l->extents);
	arg(&y, sizeof(l->first_job), &l->first_job);
	arg(&y, sizeof(l->nr_jobs), &l->nr_jobs);
	arg_mem(&y, l->h);
	arg_mem(&y, l->y);
	arg_arenas(&y, l);
	return enqueue(s, &y, l->tiles_y, s->group[l->variant], event);
}

/* ---- events -------------------------------------------------------------------------------- */

static int ocl_event_done(struct ndpi_gpu_event *event)
{
	cl_int status = CL_QUEUED;
	cl_int r = clGetEventInfo(as_event(event), CL_EVENT_COMMAND_EXECUTION_STATUS,
				  sizeof(status), &status, NULL);

	if (r != CL_SUCCESS || status < 0)
		return -ENODEV;
	return status == CL_COMPLETE;
}

static int ocl_event_wait(struct ndpi_gpu_event *event)
{
	cl_event e = as_event(event);

	return clWaitForEvents(1, &e) == CL_SUCCESS ? 0 : -ENODEV;
}

static int ocl_event_span(struct ndpi_gpu_event *first, struct ndpi_gpu_event *last, uint64_t *ns)
{
	cl_ulong from = 0, to = 0;
	cl_int r = clGetEventProfilingInfo(as_event(first), CL_PROFILING_COMMAND_START,
					   sizeof(from), &from, NULL);

	if (r == CL_SUCCESS)
		r = clGetEventProfilingInfo(as_event(last), CL_PROFILING_COMMAND_END, sizeof(to),
					    &to, NULL);
	*ns = r == CL_SUCCESS && to > from ? to - from : 0;
	return 0; /* a clock that cannot be read is no reason to drop results */
}

static void ocl_event_free(struct ndpi_gpu_event *event)
{
	if (event)
		clReleaseEvent(as_event(event));
}

const struct ndpi_gpu_ops ndpi_gpu_opencl = {
	.name = "opencl",
	.open = ocl_open,
	.close = ocl_close,
	.mem_alloc = ocl_mem_alloc,
	.pinned_alloc = ocl_pinned_alloc,
	.mem_free = ocl_mem_free,
	.stream_create = ocl_stream_create,
	.stream_sync = ocl_stream_sync,
	.stream_free = ocl_stream_free,
	.write = ocl_write,
	.read = ocl_read,
	.launch = ocl_launch,
	.mark = ocl_mark,
	.after = ocl_after,
	.flush = ocl_flush,
	.event_done = ocl_event_done,
	.event_wait = ocl_event_wait,
	.event_span = ocl_event_span,
	.event_free = ocl_event_free,
};
