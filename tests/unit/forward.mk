# SPDX-License-Identifier: GPL-2.0-or-later
# Unit tests of the layer pipeline that look behind the library's back.

test_forward_faults_LIBS := $(foreach f,ndp_gpu_submit ndp_gpu_poll ndp_gpu_wait \
	ndp_queue_wait ndp_queue_push ndp_io_write ndp_cpu_ffn,-Wl,--wrap=$(f))
test_forward_nomem_LIBS := $(foreach f,malloc calloc realloc reallocarray posix_memalign \
	aligned_alloc mmap,-Wl,--wrap=$(f))
