# SPDX-License-Identifier: LGPL-2.1-or-later
#
# libndp/moe: the router and the layer pipeline over GPU, CPU and NDP.
LIB_SRCS += $(addprefix libndp/moe/, router.c run.c run_hot.c run_plan.c reduce.c \
	domain_cpu.c domain_gpu.c domain_ndp.c forward.c forward_context.c forward_route.c)

# Long plain loops, several times as fast when they are vectorised.
CFLAGS_libndp/moe/router.c += -O3
CFLAGS_libndp/moe/reduce.c += -O3
