# SPDX-License-Identifier: GPL-2.0-or-later
#
# libndp/moe: experts on a GPU, and the OpenCL back end.
LIB_SRCS += $(addprefix libndp/moe/,gpu.c gpu_arena.c gpu_feed.c gpu_plan.c gpu_queue.c opencl.c)
LIB_LIBS += -lOpenCL

# The kernels, as one string of C.
$(BUILD)/gen/opencl.cl.inc: libndp/moe/opencl.cl
	$(Q)mkdir -p $(@D)
	$(Q)sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/.*/"&\\n"/' $< >$@
$(BUILD)/obj/libndp/moe/opencl.o: $(BUILD)/gen/opencl.cl.inc
CFLAGS_libndp/moe/opencl.c += -I$(BUILD)/gen
